"""Weight formats in memory: decode blocks to numbers, encode numbers to blocks."""

from __future__ import annotations

from mrs.quants.registry import decode, encode, requantize

__all__ = ["decode", "encode", "requantize"]
