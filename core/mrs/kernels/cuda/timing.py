"""How long products take on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.cuda.launcher import Launcher
from mrs.kernels.cuda.products import multiply
from mrs.kernels.triton.bit_planes import PlaneLayout
from mrs.kernels.triton.plane_matrix import PlaneMatrix

T = TypeVar("T")
ROUNDS = 11
#: Rows and columns of a product of a layer, and how many tokens it has.
ROWS, COLUMNS = 4096, 4096
TOKENS = (1, 16)
#: Matrices that take turns have so many times the bytes of the second-level cache together.
_CACHES = 2


def graph_s(work: Callable[[], object]) -> float:
    """Seconds of a replay of `work` as a graph, the median of several."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def each_of(held: Sequence[T], product: Callable[[T], object]) -> float:
    """Seconds of one product, from running that of all matrices after one another."""

    def run() -> None:
        for matrix in held:
            product(matrix)

    return graph_s(run) / len(held)


def seconds_of_products(
    name: str, layout: PlaneLayout | None, device: torch.device, launcher: Launcher
) -> tuple[list[float], list[float]]:
    """Seconds of a product of each of TOKENS, by the CUDA kernels and by what would replace them.

    That is Triton, or torch for BF16, which has no layout. What the weights are does not matter to
    either. They and the products take less than 600 MB.
    """
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size

    def turns(make: Callable[[], T], nbytes: int) -> list[T]:
        return [make() for _ in range(_CACHES * cache_bytes // nbytes + 2)]

    def dense() -> Tensor:
        return torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16, device=device)

    ours: Sequence[FragmentMatrix] | Sequence[Tensor]
    others: Sequence[PlaneMatrix] | Sequence[Tensor]
    if layout is None:
        ours = others = turns(dense, dense().nbytes)
    else:
        nbytes = FragmentMatrix(name, ROWS, COLUMNS, device, launcher).nbytes
        ours = turns(lambda: FragmentMatrix(name, ROWS, COLUMNS, device, launcher), nbytes)
        others = turns(lambda: PlaneMatrix(layout, ROWS, COLUMNS, device), nbytes)
    our_s, other_s = [], []
    for count in TOKENS:
        x = torch.ones(count, COLUMNS, dtype=torch.bfloat16, device=device)
        our_s.append(each_of(ours, partial(_by_cuda, x, launcher)))
        other_s.append(each_of(others, partial(_by_others, x)))
    return our_s, other_s


def _by_cuda(x: Tensor, launcher: Launcher, matrix: FragmentMatrix | Tensor) -> Tensor:
    return multiply(x, [matrix], launcher)


def _by_others(x: Tensor, matrix: PlaneMatrix | Tensor) -> Tensor:
    return x @ matrix.T if isinstance(matrix, Tensor) else matrix.matmul(x)
