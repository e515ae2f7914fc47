"""Measure the peak of this processor's products."""

from __future__ import annotations

import time

import torch

from mrs.kernels.cpu.library import native_library
from mrs.kernels.packed_layout import FLOAT_FORMATS, PACKED_FORMATS
from mrs.kernels.workspace.products import PAIRED_PATHS, TILED_PATHS

_CODES, _FLOATS, _BF16 = range(3)  # Factors in native/mrs.h
_TASKS = 2000  # each has some ten thousand instructions
_SPLIT_PRODUCTS = 3  # of bf16, in the place of one of floats: native/gemm/float_tiles.inc.h


def arithmetic_peak(format_name: str, rounds: int = 5) -> float | None:
    """Products of values per second of registers, with torch's number of threads; the best round.

    The products are those of the native kernels for weights in this format: of 8-bit codes, bf16 or
    floats. No product of matrices can be computed faster by them. None if torch multiplies
    matrices of this format.
    """
    library = native_library()
    if library is None or format_name not in PACKED_FORMATS:
        return None
    factors, each = _CODES, 1
    if format_name == "BF16" and library.path in PAIRED_PATHS:
        factors = _BF16
    elif format_name in FLOAT_FORMATS:
        is_split = library.path in TILED_PATHS and format_name != "F32"
        factors, each = (_BF16, _SPLIT_PRODUCTS) if is_split else (_FLOATS, 1)
    best = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        products = library.functions.mrs_multiply_registers(
            library.path_address, factors, _TASKS, torch.get_num_threads()
        )
        best = max(best, products / each / (time.perf_counter() - start))
    return best
