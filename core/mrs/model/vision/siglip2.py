"""SigLIP 2's vision tower."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision.towers.siglip2_tower import Siglip2Tower, WindowMerger
from mrs.architecture.vision_spec import ImageShape
from mrs.layers.attention.spec import Attention
from mrs.layers.known_fields import Known, require_only
from mrs.layers.mlp.module import MlpModule
from mrs.layers.mlp.spec import Mlp
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import attend_in_windows, build_layers
from mrs.model.vision.interpolate_positions import interpolate_smoothly
from mrs.model.vision.patches import FlatPatchEmbedding
from mrs.model.vision.siglip import nearest_position_ids


class Siglip2TowerModule:
    """Encodes views of an image, one at a time."""

    def __init__(self, tower: Siglip2Tower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = FlatPatchEmbedding(weights)
        self._positions = weights.vector("positions.weight")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm)
        self._merger = WindowMergerModule(tower.merger, weights) if tower.merger else None

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (patches of all views, 3 * patch * patch) to (patches, hidden)."""
        parts = torch.split(pixels, [rows * columns for rows, columns in shape.views])
        views = zip(parts, shape.views, strict=True)
        return torch.cat([self._encode(part, *grid) for part, grid in views])

    def _encode(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """The patches of one view, row by row, to (rows * columns, hidden)."""
        x = self._patches(patches).add_(self._embeddings(rows, columns))
        for index, layer in enumerate(self._layers):
            x = layer(x)
            if self._merger is not None and index == self._merger.after:
                x = self._merger(x, rows, columns)
        return self._norm(x)

    def _embeddings(self, rows: int, columns: int) -> Tensor:
        """The position embedding of each patch, (rows * columns, hidden)."""
        tower = self._tower
        if tower.nearest is None:
            return interpolate_smoothly(self._positions, rows, columns)
        divides = tower.nearest == "quotient"
        ids = nearest_position_ids(rows, columns, tower.position_side, divides=divides)
        return self._positions[ids.to(self._positions.device)]


#: What is computed of the specs, which are those of text models too.
_KNOWN: Known = {
    "Layer": "mixer feed_forward norm style",
    "Attention": "heads kv_heads head_dim scale rope qkv_bias out_bias",
}


class WindowMergerModule:
    """Patches attend to each other within squares of 2 x 2, each of which becomes one."""

    def __init__(self, merger: WindowMerger, weights: ModelWeights) -> None:
        assert isinstance(merger.layer.mixer, Attention)
        assert isinstance(merger.layer.feed_forward, Mlp)
        require_only(merger.layer, _KNOWN, "a merger of windows", apart=("feed_forward", "norm"))
        self.after = merger.after
        self._config = merger.layer.mixer
        scoped = weights.under("merger.")
        self._mixer_norm = scoped.norm("mixer.norm", merger.layer.norm)
        self._q, self._k, self._v, self._o = (scoped.linear(f"mixer.{each}") for each in "qkvo")
        self._norm = scoped.norm("norm", merger.layer.norm)
        self._mlp = MlpModule(merger.layer.feed_forward, weights, "merger")

    def __call__(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """x (rows * columns, hidden), row by row, to (rows / 2 * columns / 2, hidden)."""
        count = rows * columns // 4
        squares = x.view(rows // 2, 2, columns // 2, 2, -1).transpose(1, 2).reshape(x.shape)
        squares = squares + self._attend(self._mixer_norm(squares), count)
        squares = squares.view(count, 4, -1)
        return squares.mean(1) + self._mlp(self._norm(squares.flatten(1)))

    def _attend(self, x: Tensor, windows: int) -> Tensor:
        config = self._config
        q, k, v = (
            each(x).view(-1, config.heads, config.head_dim) for each in (self._q, self._k, self._v)
        )
        return self._o(attend_in_windows(q, k, v, config.scale, windows))
