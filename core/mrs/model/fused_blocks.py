"""Attention and MLP blocks of a layer, and the logits, in one native call or a few launches each.

`mrs.sizes.fusable` says which blocks these are. All others are computed operation by operation; on
a CPU with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.cpu.fused_layer import (
    NativeAttentionBlock,
    NativeMlpBlock,
    NativeReadout,
    native_library_for,
)
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.triton.decode_blocks import MlpBlock
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.model.rope import RopeTable
from mrs.model.triton_blocks import TritonAttentionBlock, triton_attention, triton_mlp
from mrs.sizes.fusable import fusable_attention, fusable_mlp, has_fusable_readout


class FusedAttentionBlock:
    """x + attention(norm(x)) for the tokens of a batch."""

    def __init__(self, native: NativeAttentionBlock, rope: RopeTable) -> None:
        self.native, self.rope = native, rope

    def supports(self, x: Tensor) -> bool:
        return self.native.supports(x)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        group = batch.attention[cache[0].group]
        return self.native(x, *self.rope.angles(batch), cache[0].kv, group)


def fuse_attention(
    layer: Layer, weights: ModelWeights, rope: RopeTable | None
) -> FusedAttentionBlock | TritonAttentionBlock | None:
    """The fused attention block of a layer; None if no kernels can compute it."""
    config = fusable_attention(layer)
    if config is None or rope is None:
        return None
    qkv_slots = [f"mixer.{slot}" for slot in "qkv"]
    matrices = packed_matrices(weights, *qkv_slots, "mixer.o")
    library = native_library_for(matrices)
    if library is None:
        return triton_attention(config, layer, weights, rope)
    native = NativeAttentionBlock(
        library,
        weights.vector("mixer.norm.weight"),
        layer.norm.eps,
        matrices,
        config.head_dim,
        pairs=rope.rope.dim // 2,
        interleaved=rope.rope.interleaved,
        scale=config.scale,
        window=config.window,
        softcap=config.softcap,
        biases=[weights.optional_vector(f"{slot}.bias") for slot in qkv_slots],
        head_norms=[weights.optional_vector(f"mixer.{slot}_norm.weight") for slot in "qk"],
        head_eps=(config.qk_norm or Norm(0.0)).eps,
    )
    return FusedAttentionBlock(native, rope)


def fuse_feed_forward(layer: Layer, weights: ModelWeights) -> NativeMlpBlock | MlpBlock | None:
    """The fused MLP block of a layer; None if no kernels can compute it."""
    mlp = fusable_mlp(layer)
    if mlp is None:
        return None
    matrices = packed_matrices(weights, "ffn.gate", "ffn.up", "ffn.down")
    library = native_library_for(matrices)
    if library is None:
        return triton_mlp(mlp, layer, weights)
    norm = weights.vector("ffn.norm.weight")
    return NativeMlpBlock(library, norm, layer.norm.eps, mlp.activation, matrices)


def fuse_readout(spec: ModelSpec, weights: ModelWeights) -> NativeReadout | None:
    """The final norm and the output head as one block; None if no kernels can compute it."""
    norm = spec.norm
    if norm is None or not has_fusable_readout(spec) or weights.sum_of_ranks is not None:
        return None
    matrices = packed_matrices(weights, spec.head_weight.removesuffix(".weight"))
    library = native_library_for(matrices)
    if library is None:
        return None
    return NativeReadout(library, weights.vector("norm.weight"), norm.eps, matrices)


def packed_matrices(weights: ModelWeights, *slots: str) -> list[PackedMatrix]:
    """The matrices of these slots; an empty list unless all of them are packed."""
    matrices = [weights.matrix(slot) for slot in slots]
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    return [] if len(packed) < len(slots) else packed
