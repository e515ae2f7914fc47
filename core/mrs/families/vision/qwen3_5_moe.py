"""Qwen 3.5 with a mixture of experts."""

from __future__ import annotations

from mrs.architecture.vision.towers.qwen3_tower import TOKENS, qwen3_family

FAMILY = qwen3_family("qwen3_5_moe", text="qwen3_5_moe_text", defaults=TOKENS)
