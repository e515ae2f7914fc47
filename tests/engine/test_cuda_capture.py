"""Graphs share their memory as torch's allocator allows it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import ClassVar
from weakref import WeakSet

import pytest
import torch

from mrs.engine.cuda_capture import CudaCapture

Pool = tuple[int, int]


class Graph:
    """In place of `torch.cuda.CUDAGraph`."""

    living: ClassVar[WeakSet[Graph]] = WeakSet()
    used: ClassVar[set[Pool]] = set()

    def __init__(self) -> None:
        self.memory: Pool = (0, 0)
        self.replays = 0

    def pool(self) -> Pool:
        return self.memory

    def replay(self) -> None:
        self.replays += 1


@contextmanager
def capture_to(graph: Graph, pool: Pool | None, capture_error_mode: str) -> Iterator[None]:
    """In place of `torch.cuda.graph`, with the check of torch's allocator."""
    living = {each.memory for each in Graph.living}
    if pool in Graph.used and pool not in living:
        raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
    graph.memory = pool or (0, len(Graph.used) + 1)
    yield
    Graph.used.add(graph.memory)
    Graph.living.add(graph)


@pytest.fixture(autouse=True)
def _fake_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture_to)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(Graph, "living", WeakSet())
    monkeypatch.setattr(Graph, "used", set())


def test_graphs_share_memory_until_all_are_gone() -> None:
    capture = CudaCapture(torch.device("cuda", 0))
    replays = [capture(lambda: torch.ones(2)) for _ in range(2)]
    assert Graph.used == {(0, 1)}
    assert all(torch.equal(replay(), torch.ones(2)) for replay in replays)
    replays.clear()
    gc.collect()
    assert torch.equal(capture(lambda: torch.zeros(1))(), torch.zeros(1))
    assert Graph.used == {(0, 1), (0, 2)}


def test_a_graph_that_failed_shares_nothing() -> None:
    capture = CudaCapture(torch.device("cuda", 0))

    def fail() -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        capture(fail)
    assert torch.equal(capture(lambda: torch.ones(1))(), torch.ones(1))
