"""The encoder layers that vision towers share: attention without a causal mask, then an MLP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.layers.attention.spec import Attention
from mrs.layers.grid_convolution.module import GridConvolutionModule
from mrs.layers.grid_convolution.spec import GridConvolution
from mrs.layers.known_fields import Known, require_only
from mrs.layers.layer import Layer
from mrs.layers.mlp.module import MlpModule
from mrs.layers.mlp.spec import Mlp
from mrs.model.model_weights import ModelWeights

#: Applies rotary position embedding to queries or keys (T, heads, head_dim).
ApplyRope = Callable[[Tensor], Tensor]

#: What is computed of the specs, which are those of text models too.
_LAYER: Known = {"Layer": "mixer feed_forward norm style"}
_ATTENTION: Known = {
    "Attention": "heads kv_heads head_dim scale rope qk_norm qk_norm_whole qkv_bias out_bias "
    "key_bias"
}


class Padding(NamedTuple):
    """The rows (P,) of padding, and all others (T - P,)."""

    rows: Tensor
    others: Tensor


class EncoderLayer:
    """x + scale * attention(norm(x)), then x + scale * mlp(norm(x)); all patches attend to all.

    A layer may have a convolution over the grid of patches in the place of attention. The scales
    are learned gates in layers of style `gated`, learned vectors in those of style `scaled`, and 1
    in all others.
    """

    def __init__(self, layer: Layer, weights: ModelWeights) -> None:
        require_only(layer, _LAYER, "a layer of a tower", apart=("mixer", "feed_forward", "norm"))
        assert isinstance(layer.feed_forward, Mlp)
        self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        self._attention = self._convolution = None
        if isinstance(layer.mixer, GridConvolution):
            self._convolution = GridConvolutionModule(weights)
        else:
            assert isinstance(layer.mixer, Attention)
            self._attention = PatchAttention(layer.mixer, weights)
        self._norm = weights.norm("ffn.norm", layer.norm)
        self._feed_forward = MlpModule(layer.feed_forward, weights)
        self._mixer_scale = weights.optional_vector("mixer.scale")
        self._scale = weights.optional_vector("ffn.scale")
        if layer.style == "gated":
            self._mixer_scale = weights.gate("mixer.residual_gate")
            self._scale = weights.gate("ffn.residual_gate")

    def __call__(
        self,
        x: Tensor,
        *,
        window_starts: Sequence[int] = (),
        rope: ApplyRope | None = None,
        padding: Padding | None = None,
        content: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Tensor:
        """x (T, hidden) to (T, hidden).

        `window_starts` are the rows, other than 0, at which an attention window begins: patches
        attend to their own window only. With `padding` all pairs of rows attend to each other
        except two padding rows. `content` (C,) are the rows that all rows attend to.
        A convolution goes over the (rows, columns) of patches that `grid` says.
        """
        normed = self._mixer_norm(x)
        if self._attention is not None:
            mixed = self._attention(normed, window_starts, rope, padding, content)
        else:
            assert self._convolution is not None
            assert grid is not None
            mixed = self._convolution(normed, grid)
        x = x + _scaled(mixed, self._mixer_scale)
        return x + _scaled(self._feed_forward(self._norm(x)), self._scale)


class PatchAttention:
    """Attention without a causal mask."""

    def __init__(self, config: Attention, weights: ModelWeights) -> None:
        require_only(config, _ATTENTION, "attention of a tower", apart=("rope", "qk_norm"))
        self._config = config
        self._q, self._k = weights.linear("mixer.q"), weights.linear("mixer.k")
        self._v, self._o = weights.linear("mixer.v"), weights.linear("mixer.o")
        self._q_norm = self._k_norm = None
        if config.qk_norm is not None:
            self._q_norm = weights.norm("mixer.q_norm", config.qk_norm)
            self._k_norm = weights.norm("mixer.k_norm", config.qk_norm)

    def __call__(
        self,
        x: Tensor,
        window_starts: Sequence[int],
        rope: ApplyRope | None,
        padding: Padding | None,
        content: Tensor | None,
    ) -> Tensor:
        """Takes the arguments of a layer."""
        config = self._config
        q, k = self._q(x), self._k(x)
        if config.qk_norm_whole:
            q, k = self._normed(q, k)
        q = q.view(-1, config.heads, config.head_dim)
        k = k.view(-1, config.kv_heads, config.head_dim)
        if not config.qk_norm_whole:
            q, k = self._normed(q, k)
        v = self._v(x).view(-1, config.kv_heads, config.head_dim)
        if rope is not None:
            q, k = rope(q), rope(k)
        if config.heads > config.kv_heads:
            k, v = (each.repeat_interleave(config.heads // config.kv_heads, 1) for each in (k, v))
        if padding is not None:
            return self._o(_attend_with_padding(q, k, v, padding, config.scale))
        if content is not None:
            return self._o(attend_in_windows(q, k[content], v[content], config.scale))
        outs = [
            attend_in_windows(q[rows], k[rows], v[rows], config.scale, count)
            for rows, count in _equal_windows(window_starts, len(x))
        ]
        return self._o(torch.cat(outs) if len(outs) > 1 else outs[0])

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self._q_norm is None or self._k_norm is None:
            return q, k
        return self._q_norm(q), self._k_norm(k)


def _scaled(out: Tensor, scale: Tensor | None) -> Tensor:
    return out if scale is None else out.mul_(scale)


def _equal_windows(window_starts: Sequence[int], rows: int) -> Iterator[tuple[slice, int]]:
    """Runs of adjacent windows of equal length: the rows of each run, and its window count."""
    bounds = zip([0, *window_starts], [*window_starts, rows], strict=True)
    start = 0
    for length, equal in groupby(end - first for first, end in bounds):
        count = len(list(equal))
        yield slice(start, start + count * length), count
        start += count * length


def attend_in_windows(q: Tensor, k: Tensor, v: Tensor, scale: float, windows: int = 1) -> Tensor:
    """Attention of queries (T, heads, D) to keys (S, heads, D): (T, heads * D).

    Both are cut into `windows` windows of equal length, which attend separately.
    """
    q, k, v = (x.reshape(windows, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def _attend_with_padding(q: Tensor, k: Tensor, v: Tensor, padding: Padding, scale: float) -> Tensor:
    """Attention of all rows to all rows, except that padding does not attend to padding."""
    rows, others = padding
    out = torch.empty_like(q.flatten(1))
    out[others] = attend_in_windows(q[others], k, v, scale)
    out[rows] = attend_in_windows(q[rows], k[others], v[others], scale)
    return out


def build_layers(layers: Sequence[Layer], weights: ModelWeights, key: str) -> list[EncoderLayer]:
    """A tower's stack of layers, whose weights are named `key.0.…`, `key.1.…`."""
    return [
        EncoderLayer(layer, weights.under(f"{key}.{index}.")) for index, layer in enumerate(layers)
    ]
