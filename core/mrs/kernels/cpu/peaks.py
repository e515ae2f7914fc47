"""Measure how fast this machine reads memory and multiplies: no product can be faster."""

from __future__ import annotations

import time

import torch

from mrs.formats import FORMATS
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.huge_pages import HugePageArena
from mrs.kernels.packed_layout import FLOAT_FORMATS, GROUP_ROWS, PACKED_FORMATS, packed_bytes
from mrs.kernels.workspace.products import PAIRED_PATHS, TILED_PATHS

_CODES, _FLOATS, _BF16 = range(3)  # Factors in native/mrs.h
_TASKS = 2000  # each has some ten thousand instructions
_COLUMNS, _PROMPT_TOKENS = 4096, 128
_READ_BYTES = 128 << 20  # more than the caches that products of a token might find weights in
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


def residual_shares(format_name: str, seconds: float = 1.0) -> tuple[float, float] | None:
    """The speed of products with what rounding leaves, as shares of that without.

    Of one token, whose weights come from memory, and of a prompt. Both kinds take turns, and the
    fastest of each counts. None if torch multiplies matrices of this format.
    """
    if native_library() is None or format_name not in PACKED_FORMATS:
        return None
    shares = []
    for tokens, size_bytes in ((1, _READ_BYTES), (_PROMPT_TOKENS, _READ_BYTES // 16)):
        row_bytes = packed_bytes(FORMATS[format_name], GROUP_ROWS, _COLUMNS) // GROUP_ROWS
        plain = PackedMatrix(format_name, size_bytes // row_bytes, _COLUMNS)
        plain.data.zero_()
        whole = PackedMatrix.wrap(plain.data, format_name, *plain.shape)
        whole.add_residuals()
        x = torch.randn(tokens, _COLUMNS, generator=torch.Generator().manual_seed(0))
        times: dict[PackedMatrix, list[float]] = {plain: [], whole: []}
        end = time.perf_counter() + seconds / 2
        while time.perf_counter() < end or len(times[whole]) < 2:
            for matrix, taken in times.items():
                start = time.perf_counter()
                matrix.matmul(x)
                taken.append(time.perf_counter() - start)
        shares.append(min(min(times[plain]) / min(times[whole]), 1.0))
    return shares[0], shares[1]


def read_bandwidth(size_bytes: int = 256 << 20, seconds: float = 0.3) -> float:
    """Bytes per second of sequential reads with torch's number of threads, one after another.

    `size_bytes` should be several times the last-level cache. No matrix-vector product can read
    its weights faster for long. The reads go on for `seconds`, as a reply does, and so meet the
    same interruptions: the best of a few would be some percent faster than any program.
    """
    memory = HugePageArena([size_bytes]).allocate(size_bytes)
    memory.fill_(1)  # the system allocates pages when they are first written
    library = native_library()

    def read() -> None:
        if library is None:
            memory.view(torch.int64).sum()
        else:
            library.functions.mrs_read(
                library.path_address, memory.data_ptr(), size_bytes, torch.get_num_threads()
            )

    read()  # starts the threads
    start, rounds = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or not rounds:
        read()
        rounds += 1
    return rounds * size_bytes / passed
