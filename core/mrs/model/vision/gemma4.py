"""The vision tower of Gemma 4, and its projector."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.gemma4 import BOUNDS, Gemma4Tower, ScaledPoolProjector
from mrs.kernels.nonlinearities import gated
from mrs.kernels.norms import rms_norm
from mrs.kernels.rotate import rotate
from mrs.layers.attention.spec import Attention
from mrs.layers.known_fields import Known, require_only
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.media.pixels import split_patches
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import attend_in_windows
from mrs.model.vision.patches import FlatPatchEmbedding

#: What is computed of the specs, which are those of text models too.
_KNOWN: Known = {
    "Layer": "mixer feed_forward norm style",
    "Attention": "heads kv_heads head_dim scale rope qk_norm value_norm",
    "Mlp": "intermediate activation",
    "Norm": "eps kind bias learned",
}
#: cos and sin (T, head_dim / 4) of the two halves of a head.
Angles = tuple[tuple[Tensor, Tensor], ...]


class Gemma4TowerModule:
    """Encodes images of any size, with rotary embedding by column and row."""

    def __init__(self, tower: Gemma4Tower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = FlatPatchEmbedding(weights)
        self._positions = weights.vector("positions")
        self._layers = [_Layer(tower, index, weights) for index in range(len(tower.layers))]

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (3, height, width) to (patches, hidden), row by row."""
        size = self._tower.patch_size
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        x = self._patches(split_patches(pixels, size))
        by_column, by_row = self._positions[0, :columns], self._positions[1, :rows]
        x = x.view(rows, columns, -1).add_(by_column).add_(by_row[:, None]).flatten(0, 1)
        angles = self._angles(rows, columns, x.device)
        for layer in self._layers:
            x = layer(x, angles)
        return x

    def _angles(self, rows: int, columns: int, device: torch.device) -> Angles:
        mixer = self._tower.layers[0].mixer
        assert isinstance(mixer, Attention)
        dim = mixer.head_dim // 2
        exponents = torch.arange(0, dim, 2, device=device).float() / dim
        frequencies = self._tower.rope_base**-exponents
        patches = torch.arange(rows * columns, device=device)
        angles = (at[:, None] * frequencies for at in (patches % columns, patches // columns))
        return tuple((each.cos(), each.sin()) for each in angles)


class _Layer:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, tower: Gemma4Tower, index: int, weights: ModelWeights) -> None:
        layer: Layer = tower.layers[index]
        assert isinstance(layer.mixer, Attention)
        assert isinstance(layer.feed_forward, Mlp)
        require_only(layer, _KNOWN, "Gemma 4's tower", apart=("norm",))
        layer_weights = weights.under(f"layer.{index}.")
        self._config, self._activation = layer.mixer, layer.feed_forward.activation
        self._norms = [
            layer_weights.norm(slot, layer.norm)
            for slot in ("mixer.norm", "mixer.post_norm", "ffn.norm", "ffn.post_norm")
        ]
        self._q_norm, self._k_norm = (
            layer_weights.norm(f"mixer.{each}_norm", layer.norm) for each in ("q", "k")
        )

        def linear(slot: str) -> _BoundedLinear:
            return _BoundedLinear(tower, index, slot, weights)

        self._q, self._k, self._v = linear("mixer.q"), linear("mixer.k"), linear("mixer.v")
        self._o = linear("mixer.o")
        self._gate, self._up = linear("ffn.gate"), linear("ffn.up")
        self._down = linear("ffn.down")

    def __call__(self, x: Tensor, angles: Angles) -> Tensor:
        """x (T, hidden) to (T, hidden)."""
        mixer_norm, mixer_post_norm, norm, post_norm = self._norms
        x = x + mixer_post_norm(self._attend(mixer_norm(x), angles))
        return x + post_norm(self._transform(norm(x)))

    def _attend(self, x: Tensor, angles: Angles) -> Tensor:
        shape = (-1, self._config.heads, self._config.head_dim)
        q = _rotated(self._q_norm(self._q(x).view(shape)), angles)
        k = _rotated(self._k_norm(self._k(x).view(shape)), angles)
        assert self._config.value_norm is not None
        v = rms_norm(self._v(x).view(shape), None, self._config.value_norm.eps)
        return self._o(attend_in_windows(q, k, v, self._config.scale))

    def _transform(self, x: Tensor) -> Tensor:
        return self._down(gated(self._activation, self._gate(x), self._up(x)))


def _rotated(x: Tensor, angles: Angles) -> Tensor:
    """x (T, heads, head_dim), whose halves rotate by different positions."""
    halves = x.chunk(2, dim=-1)
    pairs = zip(halves, angles, strict=True)
    return torch.cat([rotate(half.contiguous(), cos, sin) for half, (cos, sin) in pairs], dim=-1)


class _BoundedLinear:
    """A linear map whose inputs and outputs are clamped, if the tower has bounds for them."""

    def __init__(self, tower: Gemma4Tower, layer: int, slot: str, weights: ModelWeights) -> None:
        self._map = weights.linear(f"layer.{layer}.{slot}")
        self._bounds: list[float] = []
        if tower.is_bounded:
            names = (f"bounds.{slot}.{bound}.{layer}" for bound in BOUNDS)
            self._bounds = [float(weights.vector(name)) for name in names]

    def __call__(self, x: Tensor) -> Tensor:
        """x (T, inputs) to (T, outputs)."""
        if not self._bounds:
            return self._map(x)
        low, high, out_low, out_high = self._bounds
        return self._map(x.clamp(low, high)).clamp_(out_low, out_high)


class ScaledPoolProjectorModule:
    """Average-pools patches, scales, standardizes and projects them."""

    def __init__(self, projector: ScaledPoolProjector, weights: ModelWeights) -> None:
        self._projector = projector
        self._bias = weights.optional_vector("standard.bias")
        self._scale = weights.optional_vector("standard.scale")
        self._project = weights.linear("projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches, width), row by row, to (rows, hidden)."""
        (rows, columns), pool = shape.grid, self._projector.pool
        squares = features.view(rows, pool, columns, pool, -1).float()
        x = squares.mean((1, 3)).flatten(0, 1) * self._projector.factor
        if self._bias is not None and self._scale is not None:
            x = (x - self._bias.float()) * self._scale.float()
        return self._project(rms_norm(x.to(features.dtype), None, self._projector.norm.eps))
