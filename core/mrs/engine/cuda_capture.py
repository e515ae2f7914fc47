"""Captures steps as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import torch
from torch import Tensor


class CudaCapture:
    """All graphs share their temporary memory: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        #: Those that still exist: torch refuses to use the memory of graphs that are all gone.
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A function that repeats `step`, which has run before: its kernels are compiled.

        It returns the same tensor each time. Other threads may use the device meanwhile.
        """
        pool = next((graph.pool() for graph in self._graphs), None)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            out = step()
        self._graphs.add(graph)

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
