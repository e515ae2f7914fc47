"""The halves of ordinary layers that the native library computes in one call each.

Which those are says `mrs.sizes.fusable`. All others are computed step by step: with the same
results.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrs.cache.paged_kv import PagedKVCache
from mrs.families.spec import Layer, Norm
from mrs.kernels.layer import AttentionHalf, FeedForwardHalf, library_of
from mrs.kernels.packed import PackedMatrix
from mrs.model.batch import ForwardBatch
from mrs.model.rope import RopeTable
from mrs.model.weights import ModelWeights
from mrs.sizes.fusable import fusable_attention, fusable_feed_forward


class FusedAttention:
    """x + attention(norm(x)) for the tokens of a batch."""

    def __init__(self, half: AttentionHalf, rope: RopeTable) -> None:
        self.half, self.rope = half, rope

    def takes(self, x: Tensor) -> bool:
        return self.half.takes(x)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        group = batch.attention[cache[0].group]
        return self.half(x, *self.rope.angles(batch), cache[0].kv, group)


def fuse_attention(
    layer: Layer, weights: ModelWeights, rope: RopeTable | None
) -> FusedAttention | None:
    part = fusable_attention(layer)
    if part is None or rope is None:
        return None
    into = [f"mixer.{slot}" for slot in "qkv"]
    matrices = _packed(weights, *into, "mixer.o")
    library = library_of(matrices)
    if library is None:
        return None
    half = AttentionHalf(
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
        head_eps=(part.qk_norm or Norm(0.0)).eps,
    )
    return FusedAttention(half, rope)


def fuse_feed_forward(layer: Layer, weights: ModelWeights) -> FeedForwardHalf | None:
    part = fusable_feed_forward(layer)
    if part is None:
        return None
    matrices = _packed(weights, "ffn.gate", "ffn.up", "ffn.down")
    library = library_of(matrices)
    if library is None:
        return None
    norm = weights.vector("ffn.norm.weight")
    return FeedForwardHalf(library, norm, layer.norm.eps, part.activation, matrices)


def _packed(weights: ModelWeights, *slots: str) -> list[PackedMatrix]:
    """The matrices of these slots; none if one of them is of another kind."""
    matrices = [weights.matrix(slot) for slot in slots]
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    return [] if len(packed) < len(slots) else packed
