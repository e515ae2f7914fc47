"""Activation bytes of the blocks of layers that native kernels compute in one call.

Functions return None for blocks that are not fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrs.architecture.layers import Layer
from mrs.plan.memory.activations.attention_activations import score_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf
from mrs.sizes.fusable import fusable_attention, fusable_mlp
from mrs.sizes.fused_workspace import (
    FEW_TOKENS,
    attention_floats,
    mlp_floats,
    piece_tokens,
    tokens_at_once,
)
from mrs.sizes.products import panels_bytes, shared_bytes
from mrs.storage import Storage


class FusedBlock(NamedTuple):
    """Tensors between the input and the output, and the workspace of products and attention."""

    scratch_bytes: int
    workspace_bytes: int


def fused_attention_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int | None:
    """Peak bytes of a fused attention block, its input and output included."""
    block = _fused_attention(layer, hidden_size, shape, storage_of)
    return None if block is None else 2 * shape.size(hidden_size) + sum(block)


def fused_mlp_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int | None:
    """Peak bytes of a fused MLP block: its own, its input and output, and the layer's input."""
    block = _fused_mlp(layer, hidden_size, shape, storage_of)
    return None if block is None else 3 * shape.size(hidden_size) + sum(block)


def fused_layer_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int | None:
    """Peak bytes of a whole fused layer, for few tokens: both blocks share their scratch memory."""
    attention = _fused_attention(layer, hidden_size, shape, storage_of)
    mlp = _fused_mlp(layer, hidden_size, shape, storage_of)
    if shape.tokens > FEW_TOKENS or attention is None or mlp is None:
        return None
    scratch = max(attention.scratch_bytes, mlp.scratch_bytes)
    workspace = max(attention.workspace_bytes, mlp.workspace_bytes)
    return 2 * shape.size(hidden_size) + scratch + workspace


def fused_mixer_bytes(
    token_floats: int,
    hidden_size: int,
    shape: ForwardShape,
    products: Sequence[tuple[int, Sequence[Storage]]],
    state_workspace_bytes: int = 0,
) -> int | None:
    """Peak bytes of a fused mixer with a state, its output included: it is for few tokens.

    `products` are the columns and storages of matrices that are multiplied together.
    """
    storages = [storage for _, some in products for storage in some]
    if shape.tokens > FEW_TOKENS or not _are_fused(shape, storages):
        return None
    workspaces = [_workspace_bytes(shape, some, shape.tokens, size) for size, some in products]
    scratch = shape.size(token_floats)
    return shape.size(hidden_size) + scratch + max(state_workspace_bytes, *workspaces)


def _fused_attention(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> FusedBlock | None:
    attention = fusable_attention(layer)
    if attention is None:
        return None
    storages = [storage_of(f"mixer.{slot}") for slot in "qkvo"]
    if not _are_fused(shape, storages):
        return None
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    workspace = max(
        _workspace_bytes(shape, storages[:2], shape.tokens, hidden_size, storages[2]),
        score_bytes(attention, shape.of_one_sequence()),
        _workspace_bytes(shape, storages[3:], shape.tokens, queries),
    )
    return FusedBlock(shape.size(attention_floats(hidden_size, queries, keys)), workspace)


def _fused_mlp(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> FusedBlock | None:
    mlp = fusable_mlp(layer)
    if mlp is None:
        return None
    storages = [storage_of(f"ffn.{slot}") for slot in ("gate", "up", "down")]
    if not _are_fused(shape, storages):
        return None
    intermediate = mlp.intermediate
    token_floats = mlp_floats(hidden_size, intermediate)
    piece = piece_tokens(shape.tokens, token_floats)
    workspace = max(
        _workspace_bytes(shape, storages[:2], piece, hidden_size),
        _workspace_bytes(shape, storages[2:], piece, intermediate),
    )
    at_once = min(shape.tokens, tokens_at_once(token_floats))
    return FusedBlock(at_once * token_floats * shape.activation.block_bytes, workspace)


def _are_fused(shape: ForwardShape, storages: Sequence[Storage]) -> bool:
    """Whether all matrices are packed.

    Those with adapters that stay apart are multiplied one by one.
    """
    if shape.adapter_rank:
        return False
    return shape.native and all(each.form == "packed" for each in storages)


def _workspace_bytes(
    shape: ForwardShape,
    storages: Sequence[Storage],
    tokens: int,
    columns: int,
    residuals: Storage | None = None,
) -> int:
    """The activations of matrices with permuted columns are packed for each.

    `residuals` is that of a matrix that is multiplied with what 8-bit activations leave, too.
    """
    twice = [] if residuals is None else [residuals]

    def names(some: Sequence[Storage], is_permuted: bool) -> list[str]:
        return [each.format.name for each in some if each.is_permuted == is_permuted]

    def packed(once: Sequence[str], residual: Sequence[str] = ()) -> int:
        return panels_bytes(shape.path, once, tokens, columns, residual)

    apart = [packed([name]) for name in names(storages, True)]
    apart += [packed([], [name]) for name in names(twice, True)]
    together = packed(names(storages, False), names(twice, False))
    return shared_bytes(tokens, columns, together + sum(apart))
