"""Sums of several processes, here threads, by torch's process groups: gloo on the CPU."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from mrs.distributed import process_group
from mrs.distributed.process_group import CollectiveGroup, SharedFile
from mrs.distributed.protocol.channel import Channel

RANKS = 3


@pytest.fixture
def groups() -> Iterator[list[CollectiveGroup]]:
    peers: list[dict[int, Channel]] = [{} for _ in range(RANKS)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for low, high in itertools.combinations(range(RANKS), 2):
            peers[low][high] = Channel(socket.create_connection(server.getsockname()))
            peers[high][low] = Channel(server.accept()[0])
    file = SharedFile(0)

    def made(rank: int) -> CollectiveGroup:
        return CollectiveGroup(rank, peers[rank], str(file.path), torch.device("cpu"))

    with ThreadPoolExecutor(RANKS) as pool:
        found = list(pool.map(made, range(RANKS)))
    for group in found:
        group.watch()
    yield found
    for group in found:
        group.close()


def in_each(
    groups: list[CollectiveGroup], work: Callable[[CollectiveGroup, int], Any]
) -> list[Any]:
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(work, groups, range(RANKS)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_added_in_the_order_of_ranks(
    dtype: torch.dtype, groups: list[CollectiveGroup]
) -> None:
    chance = torch.Generator().manual_seed(1)
    parts = [(1e4 ** torch.rand(3, 7, generator=chance)).to(dtype) for _ in range(RANKS)]
    for _ in range(5):
        sums = in_each(groups, lambda group, rank: group.all_reduce(parts[rank]))
        for each in sums:
            expected = (parts[0].float() + parts[1].float()) + parts[2].float()
            assert torch.equal(each, expected.to(dtype))


@pytest.mark.few(1)
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_parts_of_different_widths_are_joined(tokens: int, groups: list[CollectiveGroup]) -> None:
    widths = [5, 70_000, 1]
    parts = [torch.rand(tokens, width) for width in widths]
    joined = in_each(groups, lambda group, rank: group.gather(parts[rank], widths))
    assert torch.equal(joined[0], torch.cat(parts, 1))


def test_all_get_what_the_first_one_has(groups: list[CollectiveGroup]) -> None:
    x = torch.rand(4, 9)
    given = [x, torch.empty(4, 9), torch.empty(4, 9)]
    for each in in_each(groups, lambda group, rank: group.broadcast(given[rank])):
        assert torch.equal(each, x)


@pytest.mark.full
def test_a_closed_group_wakes_up_the_others(groups: list[CollectiveGroup]) -> None:
    """Two wait for the third one, which ends."""
    since_s = time.monotonic()
    threading.Timer(0.5, groups[1].close).start()

    def work(group: CollectiveGroup, rank: int) -> None:
        if rank != 1:
            with pytest.raises(OSError, match="operation of"):
                group.all_reduce(torch.ones(4))

    in_each(groups, work)
    assert time.monotonic() - since_s < 30


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the file has a name")
def test_the_file_of_the_store_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store opens it by its path when it is freed: another one must not be there by then."""
    monkeypatch.setattr(process_group, "uses_collectives", lambda device: True)
    paths: list[str] = []

    def connected(
        rank: int, peers: dict[int, Channel], path: str, device: torch.device
    ) -> CollectiveGroup:
        paths.append(path)
        return CollectiveGroup(rank, peers, path, device)

    monkeypatch.setattr("mrs.distributed.process_group.CollectiveGroup", connected)
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = Channel(socket.create_connection(server.getsockname()))
        near = Channel(server.accept()[0])
    cpu = torch.device("cpu")
    with ThreadPoolExecutor(2) as pool:
        led = pool.submit(process_group.lead_group, {1: near}, cpu)
        followed = pool.submit(process_group.follow_group, 1, {0: far}, cpu)
        groups = [led.result(60), followed.result(60)]
    for group in groups:
        group.close()
    assert "mrs" in str(Path(paths[0]).readlink())
