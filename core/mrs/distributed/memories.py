"""Whose memory each process is in: on a CPU they share that of the machine, a card has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrs.devices.device import Device
from mrs.distributed.head import Member


class Memory(NamedTuple):
    """The memory of a machine's device, by the UUID of a card or else by its label."""

    machine: str
    device: str


def memories_of(own: Device, members: Sequence[Member]) -> list[Memory]:
    """The memory of each process: of the head, whose device is `own`, and of these members."""
    reports = [(each.machine, each.join.device) for each in members]
    others = [Memory(machine, report.uuid or report.label) for machine, report in reports]
    return [Memory("", own.uuid or own.label), *others]


def free_bytes_of(own: Device, members: Sequence[Member]) -> dict[Memory, int]:
    """What these processes together may have of each memory.

    That is what the first of them may have, and what the others have already: they keep weights.
    """
    head, *others = memories_of(own, members)
    found = {head: own.available_bytes}
    for memory, member in zip(others, members, strict=True):
        report = member.join.device
        known = found.get(memory)
        found[memory] = report.free_bytes if known is None else known + report.held_bytes
    return found
