"""The CUDA kernels on this machine's GPU: are they right, and how fast for 1 to 64 tokens?

    python tests/bench/cuda_products.py [--formats Q4_K Q6_K Q8_0 BF16] [--tokens 1 4 8 16 64]
        [--shapes 4096x4096 14336x4096 …] [--limit-s 270] [--without-triton]

For the first minutes on a GPU that ran none of them. Every kernel is compiled first, several at a
time, and compared with float64 products; tokens must have the same bits in every company. Then each
product runs on so many matrices in turn that no cache holds them, in a captured graph without gaps.
`normed` has an RMS norm before each product and `gated` makes two products one gate; `GB/s` counts
the weight alone and `of copy` is its share of the measured bandwidth of a copy. `Triton` is the
other kernel for the same blocks, and `dense` torch's bf16 product. What is computed beside products
is compared with torch and timed before that, as are products of 512 tokens by panels of decoded
rows. The table comes last; nothing else is read or written than the cache of compiled kernels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel, cubin_of
from mrs.kernels.cuda.decode import decode_kernel, decode_panel
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
from mrs.kernels.cuda.launcher import Launcher, Limits, device_launcher
from mrs.kernels.cuda.nvrtc import nvrtc
from mrs.kernels.cuda.products import multiply, products_kernel, shared_bytes_of, token_tiles
from mrs.kernels.cuda.routing import RouterWeights, RoutingRule, route
from mrs.kernels.cuda.rows import Heads, normalize, rotate_and_write
from mrs.kernels.cuda.self_test import (
    LARGEST_ERROR,
    largest_error,
    missing_reason,
    random_matrix,
    row_reason,
)
from mrs.kernels.cuda.timing import each_of, graph_s
from mrs.kernels.paged import PagedKV
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.triton.self_test import triton_missing_reason
from mrs.quantization.gguf.fields import PLANE_LAYOUTS

#: Of Llama 3 8B: q and o, gate and up, down, k and v.
SHAPES = ("4096x4096", "14336x4096", "4096x14336", "1024x4096")
FORMATS = (*FRAGMENT_FORMATS, "BF16")
#: Matrices that take turns have so many times the bytes of the second-level cache together.
CACHES = 4
COPIED_BYTES = 1 << 30
#: Columns of what is computed beside products.
HIDDEN = 4096


class Row(NamedTuple):
    """A line of the table; seconds, None for what was not timed."""

    name: str
    rows: int
    columns: int
    tokens: int
    nbytes: int
    seconds: float
    normed: float
    gated: float
    triton: float | None
    dense: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--formats", nargs="+", default=["Q4_K", "Q6_K", "Q8_0", "BF16"], choices=FORMATS
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 8, 16, 64])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--limit-s", type=float, default=270)
    parser.add_argument("--without-triton", action="store_true")
    wanted = parser.parse_args(arguments)
    device = torch.device("cuda", 0)
    reason = missing_reason(device) if torch.cuda.is_available() else "there is no CUDA device"
    if reason is not None:
        print(f"Nothing was run: {reason}.")
        return 1
    start_s = time.perf_counter()
    launcher = device_launcher(device)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {launcher.limits}")
    compile_all(wanted.formats, wanted.tokens, launcher.limits)
    print(f"compiled after {time.perf_counter() - start_s:.0f} s", flush=True)
    right = [name for name in wanted.formats if is_right(name, device, launcher)]
    copied = copy_bandwidth(device)
    print(f"copy {copied / 1e9:.0f} GB/s; a graph starts an empty kernel in {gap_s(device):.2e} s")
    print(f"rows    {row_reason(device) or 'right'}", flush=True)
    print(*others_s(device, launcher, [name for name in right if name != "BF16"]), sep="\n")
    has_triton = not wanted.without_triton and triton_missing_reason(device) is None
    rows: list[Row] = []
    for shape in wanted.shapes:
        size = tuple(map(int, shape.split("x")))
        dense: dict[int, float] = {}
        for name in ("BF16", *(each for each in right if each != "BF16")):
            if time.perf_counter() - start_s > wanted.limit_s:
                print(f"no time is left for {name} {shape}")
                continue
            rows += time_format(name, size, wanted.tokens, device, launcher, dense, has_triton)
            print(f"{name} {shape} after {time.perf_counter() - start_s:.0f} s", flush=True)
    print(table([row for row in rows if row.name in right], copied))
    return 0 if len(right) == len(wanted.formats) else 1


def kernels_of(formats: Sequence[str], tokens: Sequence[int], limits: Limits) -> set[Kernel]:
    """The kernels that products of these formats and numbers of tokens launch."""
    kernels: set[Kernel] = set()
    for name in formats:
        # What the self-test needs, too.
        for dtype, counts in ((torch.bfloat16, tokens), (torch.float32, (1, 9, 20, 64))):
            for count in counts:
                tiles = token_tiles((name,), count, limits)
                shared = shared_bytes_of((name,), tiles, limits)
                assert shared is not None
                for options in ({}, {"has_norm": True}, {"has_norm": True, "activation": "silu"}):
                    if options and dtype == torch.float32:
                        continue  # of the self-test
                    kernels.add(
                        products_kernel(
                            (name,), tiles, torch.bfloat16, dtype, shared, is_whole=True, **options
                        )
                    )
        if name != "BF16":
            kernels |= {decode_kernel(name, dtype) for dtype in (torch.bfloat16, torch.float32)}
    return kernels


def compile_all(formats: Sequence[str], tokens: Sequence[int], limits: Limits) -> None:
    """Put all kernels into the cache; NVRTC compiles several at a time."""
    compiler = nvrtc()
    assert compiler is not None
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(cubin_of, kernel, limits.architecture, compiler)
            for kernel in kernels_of(formats, tokens, limits)
        ]
        for job in jobs:
            job.result()


def is_right(name: str, device: torch.device, launcher: Launcher) -> bool:
    """Compare with float64, and print the largest error."""
    try:
        error = largest_error(name, PLANE_LAYOUTS.get(name), device, launcher)
    except Exception as failure:  # noqa: BLE001 - the other formats are still to be tried
        print(f"{name:5} FAILED: {failure}", flush=True)
        return False
    print(
        f"{name:5} {'right' if error <= LARGEST_ERROR else 'WRONG'}, error {error:.1e}", flush=True
    )
    return error <= LARGEST_ERROR


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / graph_s(lambda: target.copy_(source))


def gap_s(device: torch.device) -> float:
    """Seconds of a kernel that does next to nothing, in a graph of many."""
    one = torch.ones(1, device=device)

    def many() -> None:
        for _ in range(200):
            one.add_(1)

    return graph_s(many) / 200


def others_s(device: torch.device, launcher: Launcher, formats: Sequence[str]) -> Iterator[str]:
    """Lines of what is computed beside products of few tokens, for a Llama of 8 B and a mixture."""
    cos = torch.ones(64, 64, device=device)
    slots = torch.arange(64, device=device)
    kv = PagedKV(8, 128, 128, block_tokens=16, dtype=torch.bfloat16, device=device)
    kv.resize(4)
    weight, shape = torch.ones(HIDDEN, device=device), Heads(32, 8, 128, is_interleaved=False)
    router = RouterWeights(torch.randn(128, HIDDEN, device=device))
    rule = RoutingRule(top_k=8, scale=1.0, is_sigmoid=False, sums_to_one=True)
    yield "rows   norm + residual   heads to the cache   choice of 8 of 128 experts, us"
    for tokens in (1, 8, 64):
        x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)
        qkv = torch.randn(tokens, 48 * 128, device=device, dtype=torch.bfloat16)
        angles, own = (cos[:tokens], cos[:tokens]), slots[:tokens]
        seconds = (
            graph_s(lambda: normalize(x, weight, 1e-5, launcher, x)),  # noqa: B023
            graph_s(lambda: rotate_and_write(qkv, angles, shape, own, kv, launcher)),  # noqa: B023
            graph_s(lambda: route(x, router, rule, launcher, norm=weight, eps=1e-5)),  # noqa: B023
        )
        yield f"{tokens:4}   {''.join(f'{1e6 * each:<20.1f}' for each in seconds)}"
    x = torch.randn(512, HIDDEN, device=device, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    for name in formats:
        layout = PLANE_LAYOUTS[name]
        matrix, weights = random_matrix(name, layout, HIDDEN, HIDDEN, device, generator, launcher)
        assert isinstance(matrix, FragmentMatrix)
        dense = weights.bfloat16()
        out = torch.empty_like(dense)
        decoded = graph_s(lambda: decode_panel(name, matrix.data, 0, out, launcher))  # noqa: B023
        whole = graph_s(lambda: matrix.matmul(x))  # noqa: B023
        alone = graph_s(lambda: x @ dense.T)  # noqa: B023
        found, exact = matrix.matmul(x).double(), x.double() @ weights.double().T
        error = float((found - exact).norm() / exact.norm())
        yield (
            f"{name:5} 512 tokens: decoding {1e6 * decoded:.1f} us "
            f"({out.nbytes / decoded / 1e9:.0f} GB/s written), product {1e6 * whole:.1f}, dense "
            f"{1e6 * alone:.1f}, error {error:.1e} (rounding is 3e-03)"
        )


def time_format(
    name: str,
    size: tuple[int, ...],
    tokens: Sequence[int],
    device: torch.device,
    launcher: Launcher,
    dense: dict[int, float],
    has_triton: bool,
) -> list[Row]:
    """The lines of a format and size. BF16 comes first: `dense` keeps torch's seconds by tokens."""
    rows, columns = size
    layout = PLANE_LAYOUTS.get(name)
    generator = torch.Generator().manual_seed(0)
    first, _ = random_matrix(name, layout, rows, columns, device, generator, launcher)
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    held = [
        first,
        copy_of(first),
        *(copy_of(first) for _ in range(CACHES * cache_bytes // first.nbytes)),
    ]
    planes: list[PlaneMatrix] = []
    if layout is not None and has_triton:
        planes = [in_planes(first) for _ in held]
    lines = []
    pairs = [held[i : i + 2] for i in range(0, len(held) - 1, 2)]
    for count in tokens:
        x = torch.randn(count, columns, device=device, dtype=torch.bfloat16)
        norm = torch.ones(columns, device=device)
        alone = each_of(held, lambda m: multiply(x, [m], launcher))  # noqa: B023
        normed = each_of(held, lambda m: multiply(x, [m], launcher, norm=norm))  # noqa: B023
        gated = each_of(
            pairs,
            lambda pair: multiply(x, pair, launcher, norm=norm, activation="silu"),  # noqa: B023
        )
        triton = each_of(planes, lambda m: m.matmul(x)) if planes else None  # noqa: B023
        if layout is None:
            dense[count] = each_of(held, lambda m: x @ m.T)  # noqa: B023
        row = Row(
            *(name, rows, columns, count, first.nbytes, alone, normed, gated),
            *(triton, dense.get(count)),
        )
        lines.append(row)
    return lines


def copy_of(matrix: FragmentMatrix | Tensor) -> FragmentMatrix | Tensor:
    if isinstance(matrix, Tensor):
        return matrix.clone()
    found = FragmentMatrix(matrix.name, *matrix.shape, matrix.device, matrix.launcher)
    found.data.copy_(matrix.data)
    return found


def in_planes(matrix: FragmentMatrix | Tensor) -> PlaneMatrix:
    """The same weights as Triton's kernels read them."""
    assert isinstance(matrix, FragmentMatrix)
    found = PlaneMatrix(PLANE_LAYOUTS[matrix.name], *matrix.shape, matrix.device)
    found.fill(matrix.format.unpack(matrix.data))
    return found


def table(rows: Sequence[Row], copied: float) -> str:
    """One line for each row; microseconds."""

    def us(seconds: float | None) -> str:
        return f"{'-' if seconds is None else f'{seconds * 1e6:.1f}':>8}"

    lines = [
        "format  rows columns tokens       us   normed    gated    GB/s  of copy   Triton    dense"
    ]
    for row in rows:
        rate = row.nbytes / row.seconds
        lines.append(
            f"{row.name:6} {row.rows:5} {row.columns:7} {row.tokens:6} {us(row.seconds)}"
            f" {us(row.normed)} {us(row.gated)} {rate / 1e9:7.0f} {rate / copied:8.0%}"
            f" {us(row.triton)} {us(row.dense)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
