"""Bytes of activations of the halves of layers that native kernels compute in one call each.

What is not such a half is None here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrs.architecture.layers import Layer
from mrs.plan.memory.attention_activations import score_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf
from mrs.sizes.fusable import fusable_attention, fusable_mlp
from mrs.sizes.fused_workspace import (
    FEW_TOKENS,
    attention_floats,
    mlp_floats,
    piece_tokens,
    tokens_at_once,
)
from mrs.sizes.products import decodes, packed_workspace_bytes
from mrs.storage import Storage


class Half(NamedTuple):
    """What is made between x and the new x, and what products or attention take meanwhile."""

    scratch_bytes: int
    workspace_bytes: int


def fused_attention_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> int | None:
    """x and the new one beside the half's own."""
    half = _attention_half(layer, hidden_size, run, kept)
    return None if half is None else 2 * run.size(hidden_size) + sum(half)


def fused_mlp_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> int | None:
    """The old x, the new one and the next beside the half's own."""
    half = _feed_forward_half(layer, hidden_size, run, kept)
    return None if half is None else 3 * run.size(hidden_size) + sum(half)


def fused_layer_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> int | None:
    """x and the next one, beside scratch that serves both halves where few tokens pass them."""
    attention = _attention_half(layer, hidden_size, run, kept)
    feed_forward = _feed_forward_half(layer, hidden_size, run, kept)
    if run.tokens > FEW_TOKENS or attention is None or feed_forward is None:
        return None
    scratch = max(attention.scratch_bytes, feed_forward.scratch_bytes)
    workspace = max(attention.workspace_bytes, feed_forward.workspace_bytes)
    return 2 * run.size(hidden_size) + scratch + workspace


def _attention_half(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> Half | None:
    part = fusable_attention(layer)
    if part is None:
        return None
    matrices = [kept(f"mixer.{slot}") for slot in "qkvo"]
    if not _are_fused(run, matrices):
        return None
    queries, keys = part.heads * part.head_dim, part.kv_heads * part.head_dim
    workspace = max(
        _workspace_bytes(run, matrices[:3], (queries, keys, keys), run.tokens, hidden_size),
        score_bytes(part, run.of_one_sequence()),
        _workspace_bytes(run, matrices[3:], (hidden_size,), run.tokens, queries),
    )
    return Half(run.size(attention_floats(hidden_size, queries, keys)), workspace)


def _feed_forward_half(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> Half | None:
    part = fusable_mlp(layer)
    if part is None:
        return None
    matrices = [kept(f"ffn.{slot}") for slot in ("gate", "up", "down")]
    if not _are_fused(run, matrices):
        return None
    wide = part.intermediate
    numbers = mlp_floats(hidden_size, wide)
    some = piece_tokens(run.tokens, numbers)
    workspace = max(
        _workspace_bytes(run, matrices[:2], (wide, wide), some, hidden_size),
        _workspace_bytes(run, matrices[2:], (hidden_size,), some, wide),
    )
    most = min(run.tokens, tokens_at_once(numbers))
    return Half(most * numbers * run.activation.block_bytes, workspace)


def _are_fused(run: ForwardShape, matrices: Sequence[Storage]) -> bool:
    """Whether tokens are multiplied with packed matrices as they are."""
    packed = all(kept.form == "packed" for kept in matrices)
    return run.native and packed and not decodes(run.path, run.tokens)


def _workspace_bytes(
    run: ForwardShape, matrices: Sequence[Storage], rows: Sequence[int], tokens: int, columns: int
) -> int:
    factors = [(kept.format.name, count) for kept, count in zip(matrices, rows, strict=True)]
    return packed_workspace_bytes(run.path, run.threads, factors, tokens, columns)
