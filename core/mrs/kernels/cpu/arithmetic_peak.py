"""Measure the peak of this processor's products."""

from __future__ import annotations

import sys
import time

import torch

from mrs.kernels.cpu.library import native_library
from mrs.sizes.packed_layout import FLOAT_FORMATS, PACKED_FORMATS
from mrs.sizes.products import least_decoded_tokens

_CODES, _FLOATS, _BF16 = range(3)  # Factors in native/mrs.h
_TASKS = 2000  # each has some ten thousand instructions


def arithmetic_peak(format_name: str, rounds: int = 5) -> float | None:
    """Products of values per second of registers, with torch's number of threads; the best round.

    The products are those of the native kernels for weights in this format: of 8-bit codes, bf16 or
    floats. No product of matrices can be computed faster by them. None if torch multiplies
    matrices of this format with many tokens.
    """
    library = native_library()
    if library is None or format_name not in PACKED_FORMATS:
        return None
    factors = _CODES
    if format_name in FLOAT_FORMATS:
        if least_decoded_tokens(library.path, format_name) < sys.maxsize:
            return None
        has_units = library.path == "avx512_bf16" and format_name == "BF16"
        factors = _BF16 if has_units else _FLOATS
    best = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        products = library.functions.mrs_multiply_registers(
            library.path_address, factors, _TASKS, torch.get_num_threads()
        )
        best = max(best, products / (time.perf_counter() - start))
    return best
