"""Slots that a file may store fused in one tensor."""

from __future__ import annotations

#: Fused slot -> its slots, in row order.
FUSED: dict[str, tuple[str, ...]] = {
    "mixer.qkv": ("mixer.q", "mixer.k", "mixer.v"),
    "mixer.qkv_by_head": ("mixer.q", "mixer.k", "mixer.v"),
    "mixer.qkvz": ("mixer.q", "mixer.k", "mixer.v", "mixer.z"),
    "mixer.beta_step": ("mixer.beta", "mixer.step"),
    "mixer.kv_b": ("mixer.k_b", "mixer.v_b"),
    "ffn.gate_up": ("ffn.gate", "ffn.up"),
    "ffn.up_gate": ("ffn.up", "ffn.gate"),
    "ffn.experts.{expert}.gate_up": ("ffn.experts.{expert}.gate", "ffn.experts.{expert}.up"),
    "ffn.shared.gate_up": ("ffn.shared.gate", "ffn.shared.up"),
    "ffn.experts.{expert}.gate_up_pairs": ("ffn.experts.{expert}.gate", "ffn.experts.{expert}.up"),
}

#: Slot that a file may store in several tensors -> these, which have its sections of rows.
SPLIT: dict[str, tuple[str, ...]] = {
    "mixer.conv": ("mixer.conv_q", "mixer.conv_k", "mixer.conv_v"),
}

#: Fused slots whose rows are interleaved in groups (`Slot.interleave_groups`).
INTERLEAVED = frozenset(
    {
        "mixer.qkv_by_head",
        "mixer.kv_b",
        "mixer.qkvz",
        "mixer.beta_step",
        "ffn.experts.{expert}.gate_up_pairs",
    }
)
