"""Sums over the processes of one machine: values in shared memory, signals over sockets.

Each process writes its values, signals all others, and reads theirs once they have signalled. There
are two buffers: who writes the first one again knows that all have read it, because all have
signalled for the second one since.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mrs.devices.processor import cpu_threads
from mrs.distributed.peer_memory import opened
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import STEP_LIMIT_S
from mrs.distributed.shared_memory import TILE_VALUES, memory_bytes

#: Processes wait so long for each other without sleeping, if each can have a thread of its own.
_BUSY_S = 100e-6


class Group(Protocol):
    """The processes that share layers: all call the same methods in the same order."""

    device: torch.device

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks, in their order."""

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """The parts (N, width) side by side, for rank 0; for other ranks anything."""

    def spread(self, x: Tensor) -> Tensor:
        """The `x` of rank 0 for all; other ranks give any of the same shape."""

    def watch(self) -> None:
        """Called once all have joined."""

    def close(self) -> None:
        """Wake up whoever waits."""


class RankGroup:
    """Process `rank` among those that share layers; `peers` are the channels to all others.

    All processes call the same methods in the same order. These raise EOFError and OSError once a
    peer has ended, or after `close`.
    """

    def __init__(self, rank: int, peers: Mapping[int, Channel], path: Path) -> None:
        """Raises OSError, and Damaged for another file than that of a `SharedFile`."""
        self._rank, self.device = rank, torch.device("cpu")
        self._peers = [peers[number] for number in sorted(peers)]
        ranks = len(peers) + 1
        descriptor = opened(path, memory_bytes(ranks))
        try:
            memory = mmap.mmap(descriptor, memory_bytes(ranks))
        finally:
            os.close(descriptor)
        self._buffers = np.frombuffer(memory, np.float32).reshape(2, ranks, TILE_VALUES)
        self._rounds_done = 0
        self._busy_s = _BUSY_S if ranks <= cpu_threads() else 0.0

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks, of one shape, float32, added in the order of ranks."""
        out = torch.empty(part.shape)
        flat, start = out.view(-1).numpy(), 0
        for parts in self._exchange(part, [part.numel()] * self._buffers.shape[1]):
            target = flat[start : start + len(parts[0])]
            np.add(parts[0], parts[1], out=target)
            for further in parts[2:]:
                np.add(target, further, out=target)
            start += len(target)
        return out

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """The parts (N, width) of all ranks as one (N, sum of `widths`), for rank 0 alone.

        Other ranks get their own part.
        """
        tokens = part.shape[0]
        rounds = self._exchange(part, [tokens * width for width in widths])
        if self._rank:
            for _ in rounds:
                pass
            return part
        if not tokens:
            return torch.empty(0, sum(widths))
        found: list[list[Any]] = [[] for _ in widths]
        for parts in rounds:
            for own, each in zip(found, parts, strict=True):
                own.append(each.copy())
        tables = [
            torch.from_numpy(np.concatenate(own)).view(tokens, width)
            for own, width in zip(found, widths, strict=True)
        ]
        return torch.cat(tables, dim=1)

    def spread(self, x: Tensor) -> Tensor:
        """The `x` of rank 0, float32, for all; other ranks give any of the same shape."""
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
        """Tile by tile, views of the values of all ranks, of which each has so many in all."""
        own = part.to(torch.float32).contiguous().view(-1).numpy()
        for start in range(0, max(counts), TILE_VALUES):
            buffer = self._buffers[self._rounds_done % 2]
            self._rounds_done += 1
            tile = own[start : start + TILE_VALUES]
            buffer[self._rank, : len(tile)] = tile
            for channel in self._peers:
                channel.signal()
            for channel in self._peers:
                channel.await_signal(self._busy_s)
            yield [
                each[: max(0, count - start)] for each, count in zip(buffer, counts, strict=True)
            ]
