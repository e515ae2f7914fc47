"""Qwen 3.5 and later: the tower of Qwen3-VL, without features for further layers."""

from __future__ import annotations

from mrs.families.vision.qwen3_vl import TOKENS, qwen3_family

FAMILY = qwen3_family("qwen3_5", text="qwen3_5_text", defaults=TOKENS)
