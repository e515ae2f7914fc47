"""How the ranks of a group get the memory that they share, and how fast their sums are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from mrs.distributed.peer_memory import require_path
from mrs.distributed.protocol.channel import GREETING_BYTES, Channel
from mrs.distributed.protocol.messages import Connected, GroupMemory, OfGroup
from mrs.distributed.rank_group import Group, RankGroup
from mrs.distributed.shared_memory import SharedFile, memory_bytes

_SUMS = 8


def lead_group(peers: Mapping[int, Channel], device: torch.device) -> Group:
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
            answer, _ = channel.receive()
            if not isinstance(answer, Connected):
                raise channel.damaged(f"{type(answer).__name__} instead of Connected")
        group.watch()
        return group
    finally:
        if not is_store:  # torch's stores open theirs by its path once more when they are freed,
            file.remove()  # where a closed descriptor would lead to any other file


def follow_group(place: int, peers: Mapping[int, Channel], device: torch.device) -> Group:
    """The group of another rank. Raises EOFError, OSError and Damaged."""
    peers[0].expect(OfGroup, GREETING_BYTES)
    message, _ = peers[0].receive()
    if not isinstance(message, GroupMemory):
        raise peers[0].damaged(f"{type(message).__name__} instead of GroupMemory")
    if message.is_store != uses_collectives(device):
        text = "a GroupMemory's 'is_store' contradicts the device"
        raise peers[0].damaged(text, where=device.type)
    path = Path(message.path)
    require_path(path)
    group = _joined(place, peers, path, device, is_store=message.is_store)
    peers[0].send(Connected())
    group.watch()
    return group


def uses_collectives(device: torch.device) -> bool:
    """Whether processes with such devices add up by torch's process groups."""
    return device.type == "cuda"


def _joined(
    place: int, peers: Mapping[int, Channel], path: Path, device: torch.device, *, is_store: bool
) -> Group:
    if is_store:
        from mrs.distributed.collective_group import CollectiveGroup

        return CollectiveGroup(place, peers, str(path), device)
    return RankGroup(place, peers, path)


def measure_sum(group: Group, values: int) -> float:
    """The seconds of a sum of so many values; all ranks call this together."""
    part, times = torch.zeros(1, values, device=group.device), []
    for _ in range(_SUMS):
        start_s = time.perf_counter()
        group.sum(part)[0, 0].item()  # a card goes on by itself
        times.append(time.perf_counter() - start_s)
    return sorted(times)[_SUMS // 2]
