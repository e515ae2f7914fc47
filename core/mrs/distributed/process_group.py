"""The ranks that share layers, as a process group: all-reduce, gather and broadcast.

Ranks with a card each use NCCL, by torch's process groups. Those of one machine's CPUs exchange
values in shared memory and signals over the connections that they have anyway. A rank that is lost
is noticed by the end of its connection.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mrs.devices.processor import cpu_threads
from mrs.distributed.protocol.channel import GREETING_BYTES, Channel, Damaged
from mrs.distributed.protocol.failures import STEP_LIMIT_S, start_thread
from mrs.distributed.protocol.messages import Connected, GroupMemory, OfGroup
from mrs.distributed.shard import TILE_VALUES, memory_bytes
from mrs.errors import DoesNotFit
from mrs.units import human_bytes

#: How the memory of a group is named, on Linux and elsewhere.
_MEMFD, _PREFIX = "mrs", "mrs-"
#: Ranks wait so long for each other without sleeping, if each can have a thread of its own.
_BUSY_S = 100e-6
#: How long torch's groups may take to connect, and for a step: that a rank is lost is known from
#: its connection. gloo, which cannot be aborted, lets a process end only after its own limit.
_CONNECT_LIMIT, _STEP_LIMIT = timedelta(seconds=30), timedelta(seconds=STEP_LIMIT_S)
_GLOO_LIMIT = timedelta(seconds=5)
_POLL_S = 20e-6
#: Number of sums that are timed.
_TIMED_SUMS = 8


class ProcessGroup(Protocol):
    """This rank among those that share layers: all call the same methods in the same order.

    These raise EOFError and OSError once another rank has ended, or after `close`.
    """

    device: torch.device

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks, added in the order of ranks."""

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """The parts (N, width) of all ranks as one (N, sum of `widths`), for rank 0 alone.

        Other ranks get their own part.
        """

    def broadcast(self, x: Tensor) -> Tensor:
        """The `x` of rank 0, as float32, for all; other ranks give any of the same shape."""

    def watch(self) -> None:
        """Called once all have joined."""

    def close(self) -> None:
        """Wake up whoever waits."""


class SharedMemoryGroup:
    """Rank `rank` of a group on the CPUs of one machine; `peers` are the channels to all others.

    Each rank writes its values, signals all others, and reads theirs once they have signalled.
    There are two buffers: who writes the first one again knows that all have read it, because all
    have signalled for the second one since.
    """

    def __init__(self, rank: int, peers: Mapping[int, Channel], path: Path) -> None:
        """Raises OSError, and Damaged for another file than that of a `SharedFile`."""
        self._rank, self.device = rank, torch.device("cpu")
        self._peers = [peers[number] for number in sorted(peers)]
        ranks = len(peers) + 1
        descriptor = _opened(path, memory_bytes(ranks))
        try:
            memory = mmap.mmap(descriptor, memory_bytes(ranks))
        finally:
            os.close(descriptor)
        self._buffers = np.frombuffer(memory, np.float32).reshape(2, ranks, TILE_VALUES)
        self._rounds_done = 0
        self._busy_s = _BUSY_S if ranks <= cpu_threads() else 0.0

    def all_reduce(self, part: Tensor) -> Tensor:
        out = torch.empty(part.shape)
        flat, start = out.view(-1).numpy(), 0
        for parts in self._exchange(part, [part.numel()] * self._buffers.shape[1]):
            target = flat[start : start + len(parts[0])]
            np.add(parts[0], parts[1], out=target)
            for other in parts[2:]:
                np.add(target, other, out=target)
            start += len(target)
        return out

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        tokens = part.shape[0]
        rounds = self._exchange(part, [tokens * width for width in widths])
        if self._rank:
            for _ in rounds:
                pass
            return part
        if not tokens:
            return torch.empty(0, sum(widths))
        tiles: list[list[Any]] = [[] for _ in widths]
        for parts in rounds:
            for tiles_of_rank, tile in zip(tiles, parts, strict=True):
                tiles_of_rank.append(tile.copy())
        tables = [
            torch.from_numpy(np.concatenate(tiles_of_rank)).view(tokens, width)
            for tiles_of_rank, width in zip(tiles, widths, strict=True)
        ]
        return torch.cat(tables, dim=1)

    def broadcast(self, x: Tensor) -> Tensor:
        out = torch.empty(x.shape)
        flat, start = out.view(-1).numpy(), 0
        counts = [x.numel()] + [0] * (self._buffers.shape[1] - 1)
        for first, *_ in self._exchange(x[:0] if self._rank else x, counts):
            flat[start : start + len(first)] = first
            start += len(first)
        return out

    def watch(self) -> None:
        """Signals come over the connections, whose end wakes up whoever waits for one."""
        for channel in self._peers:
            channel.limit_signals(STEP_LIMIT_S)

    def close(self) -> None:
        """Wake up whoever waits; the memory goes with the last reference."""
        for channel in self._peers:
            channel.close()

    def _exchange(self, part: Tensor, counts: Sequence[int]) -> Iterator[list[Any]]:
        """Tile by tile, views of the values of all ranks; `counts` are the values of each rank."""
        values = part.to(torch.float32).contiguous().view(-1).numpy()
        for start in range(0, max(counts), TILE_VALUES):
            buffer = self._buffers[self._rounds_done % 2]
            self._rounds_done += 1
            tile = values[start : start + TILE_VALUES]
            buffer[self._rank, : len(tile)] = tile
            for channel in self._peers:
                channel.signal()
            for channel in self._peers:
                channel.await_signal(self._busy_s)
            yield [row[: max(0, count - start)] for row, count in zip(buffer, counts, strict=True)]


class CollectiveGroup:
    """Rank `rank` of a group with a card each; `peers` are the channels to all others."""

    def __init__(
        self, rank: int, peers: Mapping[int, Channel], path: str, device: torch.device
    ) -> None:
        """All processes call this at the same time, with the path of an empty file. Raises OSError.

        NCCL is used for a card, gloo for the CPU.
        """
        self._rank, self._ranks = rank, len(peers) + 1
        self._peers, self.device = peers, device
        self._has_ended = threading.Event()
        self._collectives = _torch_group(path, rank, self._ranks, device)
        self.all_reduce(torch.zeros(1, device=device))  # with it NCCL connects
        if device.type == "cuda":
            self._collectives.set_timeout(_STEP_LIMIT)

    def watch(self) -> None:
        """From now on the peers send nothing more, and whoever ends wakes up all others."""
        for channel in self._peers.values():
            start_thread("watch", partial(self._await_end, channel), lambda error: self._abort())

    def all_reduce(self, part: Tensor) -> Tensor:
        """Of one shape and type, added up as float32, so that all ranks have the same bits."""
        parts = self._all_gather(part)
        total = parts[0].float() + parts[1]
        for other in parts[2:]:
            total += other
        return total.to(part.dtype)

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        tokens, most = part.shape[0], max(widths)
        if not tokens:
            return part if self._rank else part.new_empty(0, sum(widths))
        parts = self._all_gather(torch.nn.functional.pad(part, (0, most - part.shape[1])))
        if self._rank:
            return part
        return torch.cat([part[:, :n] for part, n in zip(parts, widths, strict=True)], dim=1)

    def broadcast(self, x: Tensor) -> Tensor:
        out = x.to(self.device, torch.float32).contiguous()
        if out.numel():
            self._wait("broadcast", out, 0)
        return out

    def close(self) -> None:
        """Wake up whoever waits."""
        for channel in self._peers.values():
            channel.close()
        self._abort()

    def _all_gather(self, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, of one shape and type."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self._ranks)]
        self._wait("allgather", [parts], [part])
        return parts

    def _wait(self, name: str, *arguments: Any) -> None:
        """Start an operation and wait for it; on a card only what the card does next waits."""
        try:
            work = getattr(self._collectives, name)(*arguments)
            while self.device.type == "cpu" and not work.is_completed():
                if self._has_ended.is_set():  # gloo goes on to wait after an abort
                    raise ConnectionError(f"a process has ended during an operation of all: {name}")
                time.sleep(_POLL_S)
            work.wait()
        except RuntimeError as error:  # of torch, of whatever kind
            text = f"an operation of several processes has failed: {name}"
            raise ConnectionError(text) from error

    def _await_end(self, channel: Channel) -> None:
        channel.await_signal()
        self._abort()

    def _abort(self) -> None:
        self._has_ended.set()
        with suppress(RuntimeError):
            self._collectives.abort()


def _torch_group(path: str, rank: int, ranks: int, device: torch.device) -> Any:
    """torch's group of these processes. Raises OSError."""
    import torch.distributed as dist

    try:
        store = dist.FileStore(path, ranks)  # type: ignore[attr-defined]
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _CONNECT_LIMIT
            return dist.ProcessGroupNCCL(store, rank, ranks, options)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = _GLOO_LIMIT
        # gloo would listen where the machine's name leads
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, rank, ranks, options)
    except RuntimeError as error:
        raise ConnectionError("the processes of a group cannot connect") from error


def lead_group(peers: Mapping[int, Channel], device: torch.device) -> ProcessGroup:
    """The group of rank 0 in it, which decides how all add up.

    Processes with a card each use NCCL, others shared memory. Raises as `follow_group`, DoesNotFit.
    """
    is_store = uses_collectives(device)
    file = SharedFile(0 if is_store else memory_bytes(len(peers) + 1))
    try:
        for channel in peers.values():
            channel.expect(OfGroup, GREETING_BYTES)
            channel.send(GroupMemory(str(file.path), is_store))
        group = _joined(0, peers, file.path, device, is_store=is_store)
        for channel in peers.values():
            channel.take(Connected)
        group.watch()
        return group
    finally:
        if not is_store:  # torch's stores open theirs by its path once more when they are freed,
            file.remove()  # where a closed descriptor would lead to any other file


def follow_group(place: int, peers: Mapping[int, Channel], device: torch.device) -> ProcessGroup:
    """The group of another rank. Raises EOFError, OSError and Damaged."""
    peers[0].expect(OfGroup, GREETING_BYTES)
    message = peers[0].take(GroupMemory)
    if message.is_store != uses_collectives(device):
        text = "a GroupMemory's 'is_store' contradicts the device"
        raise peers[0].damaged(text, where=device.type)
    path = Path(message.path)
    _require_path(path)
    group = _joined(place, peers, path, device, is_store=message.is_store)
    peers[0].send(Connected())
    group.watch()
    return group


def uses_collectives(device: torch.device) -> bool:
    """Whether processes with such devices add up by torch's process groups."""
    return device.type == "cuda"


def _joined(
    place: int, peers: Mapping[int, Channel], path: Path, device: torch.device, *, is_store: bool
) -> ProcessGroup:
    if is_store:
        return CollectiveGroup(place, peers, str(path), device)
    return SharedMemoryGroup(place, peers, path)


def measure_sum(group: ProcessGroup, values: int) -> float:
    """Seconds of a sum of `values` values; all ranks call this together."""
    part, times = torch.zeros(1, values, device=group.device), []
    for _ in range(_TIMED_SUMS):
        start_s = time.perf_counter()
        group.all_reduce(part)[0, 0].item()  # a card goes on by itself
        times.append(time.perf_counter() - start_s)
    return sorted(times)[_TIMED_SUMS // 2]


def is_shared_memory(path: str) -> bool:
    """Whether a path from another process is that of a `SharedFile`, and of nothing else."""
    if not hasattr(os, "memfd_create"):
        file = Path(path)
        return file.parent == Path(tempfile.gettempdir()) and file.name.startswith(_PREFIX)
    if not re.fullmatch(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}", path):
        return False
    try:
        return os.readlink(path) == f"/memfd:{_MEMFD} (deleted)"  # noqa: PTH115
    except OSError:
        return False


class SharedFile:
    """A file for the memory of a group, which all processes open before it is removed.

    On Linux it has no name, so that nothing is left behind when this process is killed, and it is
    sealed: a process that made it shorter would end the others, which have it in their memory.
    """

    def __init__(self, size_bytes: int) -> None:
        """Raises DoesNotFit."""
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create(_MEMFD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        else:
            self._descriptor, name = tempfile.mkstemp(prefix=_PREFIX)
            self.path = Path(name)
        try:
            _reserve(self._descriptor, size_bytes)
            if size_bytes and hasattr(os, "memfd_create"):
                _seal(self._descriptor)
        except OSError as error:
            self.remove()
            raise DoesNotFit(
                f"there is no room for {human_bytes(size_bytes)} of shared memory",
                missing_bytes=size_bytes,
                where=error.strerror or "",
            ) from error

    def remove(self) -> None:
        os.close(self._descriptor)
        if not hasattr(os, "memfd_create"):
            with suppress(OSError):
                self.path.unlink()


def _seal(descriptor: int) -> None:
    import fcntl

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Allocate now: a write to a full file system would end the process later."""
    if not size_bytes:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.truncate(descriptor, size_bytes)


def _require_path(path: Path) -> None:
    """Raises Damaged for a path that no `SharedFile` has."""
    if not is_shared_memory(str(path)):
        raise Damaged("the memory of a group has another path")


def _opened(path: Path, size_bytes: int) -> int:
    """A descriptor of the file of `size_bytes` that another process has made.

    Raises OSError, and Damaged for any other file: a peer may name one that is somebody else's, or
    that ends the reader when it is made shorter.
    """
    _require_path(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        if os.fstat(descriptor).st_size != size_bytes:
            raise Damaged("the memory of a group has another size")
        if hasattr(os, "memfd_create"):
            _require_sealed(descriptor)
        _reserve(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_sealed(descriptor: int) -> None:
    """Raises Damaged for what is no memory that keeps its size."""
    import fcntl

    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise Damaged("the memory of a group can be made shorter")
