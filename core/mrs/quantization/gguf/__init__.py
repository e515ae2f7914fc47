"""Decode blocks of every format to floating-point values, and encode values to blocks."""

from __future__ import annotations

from mrs.quantization.gguf.codec import decode, encode, requantize

__all__ = ["decode", "encode", "requantize"]
