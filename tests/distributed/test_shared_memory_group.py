"""Sums and joined parts of several processes, here threads, through shared memory."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from mrs.distributed import process_group
from mrs.distributed.process_group import SharedFile, SharedMemoryGroup
from mrs.distributed.protocol.channel import Channel, Damaged
from mrs.distributed.shard import TILE_VALUES, memory_bytes
from mrs.errors import DoesNotFit

RANKS = 3


@pytest.fixture
def groups() -> Iterator[list[SharedMemoryGroup]]:
    peers: list[dict[int, Channel]] = [{} for _ in range(RANKS)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for low, high in itertools.combinations(range(RANKS), 2):
            peers[low][high] = Channel(socket.create_connection(server.getsockname()))
            peers[high][low] = Channel(server.accept()[0])
    file = SharedFile(memory_bytes(RANKS))
    found = [SharedMemoryGroup(rank, peers[rank], file.path) for rank in range(RANKS)]
    file.remove()
    yield found
    for group in found:
        group.close()


def in_each(
    groups: list[SharedMemoryGroup], work: Callable[[SharedMemoryGroup, int], Any]
) -> list[Any]:
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(work, groups, range(RANKS)))


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", [(1, 7), (3, TILE_VALUES), (2, TILE_VALUES // 2 + 1)])
@pytest.mark.parametrize("busy_s", [0.0, 100e-6])
def test_parts_are_added_in_the_order_of_ranks(
    shape: tuple[int, int], busy_s: float, groups: list[SharedMemoryGroup]
) -> None:
    """Also of more values than the memory has, and again and again."""
    chance = torch.Generator().manual_seed(1)
    parts = [1e4 ** torch.rand(shape, generator=chance) for _ in range(RANKS)]
    for group in groups:
        group._busy_s = busy_s
    for _ in range(5):
        sums = in_each(groups, lambda group, rank: group.all_reduce(parts[rank]))
        for each in sums:
            assert torch.equal(each, (parts[0] + parts[1]) + parts[2])
    assert not torch.equal(sums[0], parts[0] + (parts[1] + parts[2]))


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_parts_of_different_widths_are_joined(tokens: int, groups: list[SharedMemoryGroup]) -> None:
    widths = [5, TILE_VALUES + 3, 1]
    parts = [torch.rand(tokens, width) for width in widths]
    joined = in_each(groups, lambda group, rank: group.gather(parts[rank], widths))
    assert torch.equal(joined[0], torch.cat(parts, 1))


def test_a_closed_group_wakes_up_the_others(groups: list[SharedMemoryGroup]) -> None:
    def work(group: SharedMemoryGroup, rank: int) -> None:
        if rank == 1:
            group.close()
            return
        with pytest.raises((EOFError, OSError)):
            group.all_reduce(torch.ones(4))
        group.close()

    in_each(groups, work)


def test_memory_of_another_size_is_refused() -> None:
    file = SharedFile(memory_bytes(2))
    with pytest.raises(Damaged, match="another size"):
        SharedMemoryGroup(0, {}, file.path)
    file.remove()


def test_another_file_than_shared_memory_is_not_opened(tmp_path: Path) -> None:
    """A peer names it, and what is added up would be written to it."""
    path = tmp_path / "memory"
    path.write_bytes(bytes(memory_bytes(1)))
    with pytest.raises(Damaged, match="another path"):
        SharedMemoryGroup(0, {}, path)
    with (
        path.open("r+b") as file,
        pytest.raises(Damaged, match="another path"),
    ):
        SharedMemoryGroup(
            0, {}, Path(f"/proc/self/fd/{file.fileno()}".replace("self", str(os.getpid())))
        )
    assert path.read_bytes() == bytes(memory_bytes(1))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files need a name there")
def test_memory_that_could_be_made_shorter_is_refused() -> None:
    """Whoever reads beyond the end of it gets SIGBUS."""
    descriptor = os.memfd_create("mrs", os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, memory_bytes(1))
    with pytest.raises(Damaged, match="made shorter"):
        SharedMemoryGroup(0, {}, Path(f"/proc/{os.getpid()}/fd/{descriptor}"))
    os.close(descriptor)
    file = SharedFile(memory_bytes(1))
    with pytest.raises(PermissionError):
        os.truncate(file.path, 0)
    file.remove()


def test_a_rank_that_never_signals_is_not_waited_for_without_end(
    groups: list[SharedMemoryGroup],
) -> None:
    for channel in groups[0]._peers:
        channel.limit_signals(0.2)
    with pytest.raises(TimeoutError, match="no signal"):
        groups[0].all_reduce(torch.ones(4))


def test_no_room_for_shared_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DoesNotFit, match=r"no room for .* \(.*No space left on device\)"):
        SharedFile(memory_bytes(2))


def test_processes_without_a_thread_of_their_own_do_not_wait_busily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = SharedFile(memory_bytes(1))
    monkeypatch.setattr(process_group, "cpu_threads", lambda: 0)
    assert SharedMemoryGroup(0, {}, file.path)._busy_s == 0.0
    file.remove()
