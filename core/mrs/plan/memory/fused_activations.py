"""Bytes of activations of the halves of layers that native kernels compute in one call each.

What is not such a half is None here; which ones are is the rule of `mrs.model.fused_blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.attention_sizes import is_native
from mrs.plan.memory.attention_activations import score_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, decodes_packed, panel_bytes
from mrs.storage import Storage
from mrs.units import MIB

#: Feed-forward halves run so many tokens at a time that this holds what is made of them, in
#: multiples of some tokens.
MLP_SCRATCH_BYTES = 31 * MIB
MLP_PANEL_TOKENS = 12


def fused_attention_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> int | None:
    """x, its norm, queries, keys and values, while they are made.

    Then the norm is gone, and there are the mixed result and the new x, beside the scores or the
    mixed result in panels.
    """
    part = layer.mixer
    if not isinstance(part, Attention) or part.rope is None or not _is_ordinary(layer):
        return None
    head_norm = part.qk_norm
    if part.qk_norm_whole or (head_norm is not None and head_norm.kind != "rms"):
        return None
    if part.sinks or part.gated or part.out_bias:
        return None
    into = [kept(f"mixer.{slot}") for slot in "qkv"]
    back = kept("mixer.o")
    if not is_native(part.head_dim) or not _are_fused(run, [*into, back]):
        return None
    queries, keys = part.heads * part.head_dim, part.kv_heads * part.head_dim
    x, made = run.size(hidden_size), run.size(queries + 2 * keys)
    panels = panel_bytes(run, [back.format], run.tokens, queries, hidden_size)
    attending = run.size(queries) + x + max(score_bytes(part, run.of_one_sequence()), panels)
    formats = [kept.format for kept in into]
    projecting = x + panel_bytes(run, formats, run.tokens, hidden_size, queries + 2 * keys)
    return x + made + max(projecting, attending)


def fused_mlp_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> int | None:
    """The old x, the new one and the next; of some tokens also the norm, gate and up.

    Beside them the norm in panels, or the product of gate and up.
    """
    part = layer.feed_forward
    if not isinstance(part, Mlp) or not _is_ordinary(layer):
        return None
    if not part.gated or part.bias or part.activation not in ("silu", "gelu_tanh"):
        return None
    into = [kept("ffn.gate"), kept("ffn.up")]
    down = kept("ffn.down")
    if not _are_fused(run, [*into, down]):
        return None
    numbers = hidden_size + 2 * part.intermediate
    most = max(MLP_SCRATCH_BYTES // (4 * numbers * MLP_PANEL_TOKENS), 1) * MLP_PANEL_TOKENS
    pieces = -(-run.tokens // most)
    some = min(run.tokens, -(-run.tokens // (pieces * MLP_PANEL_TOKENS)) * MLP_PANEL_TOKENS)
    scratch = replace(run, tokens=min(run.tokens, most)).size(numbers)
    formats = [kept.format for kept in into]
    laid = max(
        panel_bytes(run, formats, some, hidden_size, 2 * part.intermediate),
        panel_bytes(run, [down.format], some, part.intermediate, hidden_size),
    )
    return 3 * run.size(hidden_size) + scratch + laid


def _is_ordinary(layer: Layer) -> bool:
    return layer.style == "pre" and layer.residual_scale == 1.0 and layer.norm.kind == "rms"


def _are_fused(run: ForwardShape, matrices: Sequence[Storage]) -> bool:
    """Whether tokens are multiplied with packed matrices as they are."""
    packed = all(kept.form == "packed" for kept in matrices)
    return run.native and packed and not decodes_packed(run, run.tokens)
