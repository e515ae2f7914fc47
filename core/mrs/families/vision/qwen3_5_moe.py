"""Qwen 3.5 with a mixture of experts."""

from __future__ import annotations

from mrs.families.vision.qwen3_vl import TOKENS, qwen3_family

FAMILY = qwen3_family("qwen3_5_moe", text="qwen3_5_moe_text", defaults=TOKENS)
