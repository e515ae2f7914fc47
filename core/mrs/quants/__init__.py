"""Weight formats: decode blocks to floating-point values, encode values to blocks.

To add a quantization:

1. Add its block size to `FORMATS` in `core/mrs/formats.py`.
2. Add its decoder (and encoder) to a file of `core/mrs/quants/` and to that file's tables.
3. To multiply without decoding on a CPU, add it to `PACKED_FORMATS` in
   `core/mrs/sizes/packed_layout.py` and its unpacking to `core/mrs/kernels/cpu/native/`, and build
   in place: `python -m mrs.kernels.cpu.native.compile`.
"""

from __future__ import annotations

from mrs.quants.codec import decode, encode, requantize

__all__ = ["decode", "encode", "requantize"]
