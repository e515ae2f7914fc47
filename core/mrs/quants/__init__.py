"""Weight formats: decode blocks to floating-point values, encode values to blocks."""

from __future__ import annotations

from mrs.quants.codec import decode, encode, requantize

__all__ = ["decode", "encode", "requantize"]
