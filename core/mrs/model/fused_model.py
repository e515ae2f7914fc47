"""A whole model that one native call computes for a few tokens.

After a decode step the weights have evicted the interpreter from the processor's caches, and all
that it does until the next product takes about five times as long as it would otherwise. For a
small model that is a good part of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.layer_cache import LayerCache
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.cpu.fused_layer import NativeReadout
from mrs.kernels.cpu.fused_model import MAX_ROPES, NativeModel
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.model.batch import ForwardBatch
from mrs.model.fused_chain import FusedLayerChain
from mrs.model.layer_stack import LayerStack
from mrs.model.model_weights import ModelWeights
from mrs.sizes.fusable import is_fusable_model


class FusedModel:
    """Embedding, all layers, final norm and output head."""

    def __init__(
        self, spec: ModelSpec, embedding: PackedMatrix, chain: FusedLayerChain, head: NativeReadout
    ) -> None:
        self._spec = spec
        self._embedding = embedding
        self._chain = chain
        self._head = head
        self._native: dict[tuple[int, ...], NativeModel] = {}
        self._any_native = self._native_model((0,) * len(spec.layers))

    def supports(self, batch: ForwardBatch) -> bool:
        """Whether all tokens of a batch are texts in one dimension, and logits follow each."""
        tokens = batch.token_ids.shape[0]
        return (
            self._any_native.supports(tokens)
            and len(batch.logits_rows) == tokens
            and not batch.images
            and not batch.has_attention_ends
            and batch.positions.dim() == 1
            and batch.token_types is None
        )

    def __call__(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Logits (N, vocab) before scale and cap; `caches` are one sequence's of all layers."""
        positions = batch.positions
        end = max(positions.tolist()) + 1
        paged = cast("Sequence[PagedKVCache]", caches)
        return self._native_model(tuple([cache.group for cache in paged]))(
            batch.token_ids,
            positions,
            [rope.table(end) for rope in self._chain.ropes],
            [cache.kv for cache in paged],
            batch.attention,
        )

    def _native_model(self, groups: tuple[int, ...]) -> NativeModel:
        """The native model whose layers read the block tables of these cache groups."""
        if groups not in self._native:
            self._native[groups] = NativeModel(
                self._embedding,
                self._spec.embedding_scale,
                self._chain.native_chain(groups),
                [rope.rope.dim // 2 for rope in self._chain.ropes],
                self._head,
            )
        return self._native[groups]


def fuse_model(
    spec: ModelSpec, weights: ModelWeights, stack: LayerStack, head: NativeReadout | None
) -> FusedModel | None:
    """The model as one block; None if it is computed in parts."""
    embedding, chain = weights.matrix("embedding"), stack.chains.get(0)
    if head is None or chain is None or chain.layer_indices.stop < len(spec.layers):
        return None
    if not isinstance(embedding, PackedMatrix) or embedding.is_permuted:
        return None
    if not is_fusable_model(spec) or len(chain.ropes) > MAX_ROPES:
        return None
    if not all(rope.is_fixed for rope in chain.ropes):
        return None
    return FusedModel(spec, embedding, chain, head)
