"""The halves of ordinary layers that the native library computes in one call each.

Ordinary are layers of the `pre` style with root-mean-square norms, whose matrices are packed and
have no biases but those of queries, keys and values, and whose attention and feed-forward parts
have no rarer features. All others are computed step by step: with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrs.architecture.layers import Attention, Layer, Mlp, Norm
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.cpu.elementwise import ACTIVATION_NUMBERS
from mrs.kernels.cpu.fused_layer import (
    NativeAttentionBlock,
    NativeMlpBlock,
    native_library_for,
    supports_head_dim,
)
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.model.batch import ForwardBatch
from mrs.model.rope import RopeTable
from mrs.model.weights import ModelWeights


class FusedAttentionBlock:
    """x + attention(norm(x)) for the tokens of a batch."""

    def __init__(self, half: NativeAttentionBlock, rope: RopeTable) -> None:
        self.half, self.rope = half, rope

    def takes(self, x: Tensor) -> bool:
        return self.half.takes(x)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        group = batch.attention[cache[0].group]
        return self.half(x, *self.rope.angles(batch), cache[0].kv, group)


def fuse_attention(
    layer: Layer, weights: ModelWeights, rope: RopeTable | None
) -> FusedAttentionBlock | None:
    part = layer.mixer
    if rope is None or not isinstance(part, Attention) or not _is_ordinary(layer):
        return None
    head_norm = part.qk_norm or Norm(0.0)
    if part.sinks or part.gated or part.qk_norm_whole or head_norm.kind != "rms":
        return None
    into = [f"mixer.{slot}" for slot in "qkv"]
    matrices = _packed(weights, *into, "mixer.o")
    library = native_library_for(matrices)
    if library is None or part.out_bias or not supports_head_dim(part.head_dim):
        return None
    half = NativeAttentionBlock(
        library,
        weights.vector("mixer.norm.weight"),
        layer.norm.eps,
        matrices,
        part.head_dim,
        pairs=rope.rope.dim // 2,
        interleaved=rope.rope.interleaved,
        scale=part.scale,
        window=part.window,
        softcap=part.softcap,
        biases=[weights.optional_vector(f"{slot}.bias") for slot in into],
        head_norms=[weights.optional_vector(f"mixer.{slot}_norm.weight") for slot in "qk"],
        head_eps=head_norm.eps,
    )
    return FusedAttentionBlock(half, rope)


def fuse_feed_forward(layer: Layer, weights: ModelWeights) -> NativeMlpBlock | None:
    part = layer.feed_forward
    if not isinstance(part, Mlp) or not part.gated or part.activation not in ACTIVATION_NUMBERS:
        return None
    if part.bias or not _is_ordinary(layer):
        return None
    matrices = _packed(weights, "ffn.gate", "ffn.up", "ffn.down")
    library = native_library_for(matrices)
    if library is None:
        return None
    norm = weights.vector("ffn.norm.weight")
    return NativeMlpBlock(library, norm, layer.norm.eps, part.activation, matrices)


def _is_ordinary(layer: Layer) -> bool:
    return layer.style == "pre" and layer.residual_scale == 1.0 and layer.norm.kind == "rms"


def _packed(weights: ModelWeights, *slots: str) -> list[PackedMatrix]:
    """The matrices of these slots; none if one of them is of another kind."""
    matrices = [weights.matrix(slot) for slot in slots]
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    return [] if len(packed) < len(slots) else packed
