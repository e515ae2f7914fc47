"""The Triton kernels on this machine's GPU: are they right, and how fast beside dense bf16?

    python tests/bench/cuda_kernels.py [--formats Q4_K Q8_0 …] [--rows 8192] [--columns 8192]
        [--tokens 1 2 4 8 16 64 512 2048] [--matrices 8]

First every format is multiplied in odd sizes and compared with float64 products of what gguf-py
decodes. Then each product runs on several matrices in turn, so that no cache holds them; times
are medians of a captured graph of them all, which has no gaps between its kernels. `GB/s` counts
the weight alone, `of read` is its share of the measured read bandwidth, and `dense` is torch's
bf16 product of the same matrix over ours. `launch` is what one product costs without a graph.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mrs.formats import FORMATS
from mrs.kernels.cuda.timing import each_of, graph_s
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.triton.self_test import products_unavailable_reason
from mrs.quantization.gguf.fields import PLANE_LAYOUTS, split_blocks

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from packed_blocks import random_blocks, reference_values, same_bytes

GPU = torch.device("cuda", 0)
ODD_SIZES = ((1, 5, 256), (1, 129, 2304), (3, 66, 768), (8, 1, 256), (9, 5, 256), (130, 67, 2304))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", default=list(PLANE_LAYOUTS), choices=PLANE_LAYOUTS)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=8192)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 512, 2048])
    parser.add_argument("--matrices", type=int, default=8)
    wanted = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    print(f"{torch.cuda.get_device_name(GPU)}, torch {torch.__version__}")
    if reason := products_unavailable_reason(GPU):
        print(reason)
        return 1
    failures = sum(not is_right(name) for name in wanted.formats)
    bandwidth = read_bandwidth()
    print(f"\nread bandwidth {bandwidth / 1e9:.0f} GB/s")
    size = wanted.rows, wanted.columns
    dense = dense_times(*size, wanted.tokens, wanted.matrices)
    for name in wanted.formats:
        time_format(name, size, wanted.matrices, bandwidth, dense)
    return 1 if failures else 0


def is_right(name: str) -> bool:
    """Compare in odd sizes and with extreme blocks; print the largest errors."""
    worst: dict[torch.dtype, float] = {}
    for tokens, rows, columns in ODD_SIZES:
        blocks = random_blocks(name, rows, columns)
        matrix, values = in_planes(name, blocks), reference_values(name, blocks).double()
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(tokens, columns, device=GPU).to(dtype)
            expected = x.double() @ values.to(GPU).T
            first = matrix.matmul(x)
            error = float((first.double() - expected).norm() / expected.norm())
            worst[dtype] = max(worst.get(dtype, 0.0), error)
            if not torch.equal(first, matrix.matmul(x)):
                worst[dtype] = float("inf")
    finite = all(
        in_planes(name, same_bytes(name, 4, 256, codes, half))
        .matmul(torch.randn(tokens, 256, device=GPU) * 1e20)
        .isfinite()
        .all()
        for codes in (0x00, 0x7F, 0x80, 0xFF)
        for half in (0x0001, 0x03FF, 0x7BFF)
        for tokens in (1, 9)
    )
    # Tiles of many tokens multiply in float16, and results are rounded to their own type.
    right = finite and all(
        error < 1e-3 + torch.finfo(dtype).eps / 4 for dtype, error in worst.items()
    )
    errors = "  ".join(f"{str(dtype)[6:]} {error:.1e}" for dtype, error in worst.items())
    print(f"{name:5} {'right' if right else 'WRONG'}  {errors}  {'' if finite else 'not finite'}")
    return right


def in_planes(name: str, blocks: Tensor) -> PlaneMatrix:
    kind = FORMATS[name]
    columns = blocks.shape[1] // kind.block_bytes * kind.block_elements
    matrix = PlaneMatrix(PLANE_LAYOUTS[name], len(blocks), columns, GPU)
    matrix.fill(split_blocks(blocks.to(GPU), kind))
    return matrix


def read_bandwidth() -> float:
    """Bytes a second of summing up 2 GiB."""
    data = torch.ones(1 << 28, dtype=torch.float64, device=GPU)
    return data.nbytes / graph_s(lambda: data.sum())


def product_time(products: Sequence[Callable[[], object]]) -> float:
    """Seconds of one product, from running all of them after one another."""
    return each_of(products, lambda product: product())


def launch_time(product: Callable[[], object]) -> float:
    """Seconds that the host takes to start one product."""
    product()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(100):
        product()
    seconds = (time.perf_counter() - start) / 100
    torch.cuda.synchronize()
    return seconds


def dense_times(rows: int, columns: int, tokens: Sequence[int], matrices: int) -> dict[int, float]:
    weights = [
        torch.randn(rows, columns, device=GPU, dtype=torch.bfloat16) for _ in range(matrices)
    ]
    times = {}
    for count in tokens:
        x = torch.randn(count, columns, device=GPU, dtype=torch.bfloat16)
        times[count] = product_time([lambda w=w, x=x: x @ w.T for w in weights])  # type: ignore[misc]
    return times


def time_format(
    name: str, size: tuple[int, int], matrices: int, bandwidth: float, dense: dict[int, float]
) -> None:
    rows, columns = size
    print(
        f"\n{name} {rows} x {columns}\ntokens       µs   GB/s  of read  TFLOP/s  dense  launch µs"
    )
    blocks = random_blocks(name, rows, columns)
    held = [in_planes(name, blocks) for _ in range(matrices)]
    for tokens, dense_seconds in dense.items():
        x = torch.randn(tokens, columns, device=GPU, dtype=torch.bfloat16)
        products = [lambda m=m, x=x: m.matmul(x) for m in held]  # type: ignore[misc]
        seconds = product_time(products)
        rate = held[0].nbytes / seconds
        flops = 2 * tokens * rows * columns / seconds
        print(
            f"{tokens:6} {seconds * 1e6:8.1f} {rate / 1e9:6.0f} {rate / bandwidth:8.0%}"
            f" {flops / 1e12:8.1f} {dense_seconds / seconds:6.2f}"
            f" {launch_time(products[0]) * 1e6:10.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
