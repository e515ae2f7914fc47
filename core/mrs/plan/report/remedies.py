"""Which machine has room for a model that another one has none for, and how fast that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from mrs.devices.device import HYPOTHETICAL, Device
from mrs.devices.parse import what_if_devices
from mrs.devices.published_cards import cards_of, published_card
from mrs.devices.published_processors import published_processor
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import GIB

#: A machine that names no CPU has so much memory for the process; no layer goes there.
HOST_BYTES = 16 * GIB
#: More cards than a cluster of eight servers has are no answer.
MOST_CARDS = 64
#: Sizes of a computer's memory that a person can buy, in GiB.
MEMORY_SIZES_GIB = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)


class Remedy(NamedTuple):
    """A machine by the words of `mrs fit --on`, and the plan of the model there."""

    machine: str
    plan: Plan


def remedies(planner: Planner, request: RunRequest) -> Iterator[Remedy]:
    """Machines with room for a request that the devices of `planner` have none for.

    More cards of the same kind, or a larger computer of the maker; and where a request forbids
    layers on the CPU, the same cards with one that has them. Cards of several kinds have none.
    """
    devices, request = planner.devices, replace(request, layer_map=None)
    cards = [device for device in devices if device.kind != "cpu"]
    if not cards:
        yield from _with_memory(planner, devices[-1].name, [], request)
    if len({card.name for card in cards}) != 1:
        return
    whole, card = replace(request, cpu_spill=False), cards[0]
    if remedy := (
        _larger(planner, card, whole)
        if card.shares_host_memory
        else _more(planner, card, whole, len(cards))
    ):
        yield remedy
    if not request.cpu_spill and not card.shares_host_memory:
        yield from _with_memory(planner, HYPOTHETICAL, cards, replace(request, cpu_spill=True))


def name_of(card: Device) -> str:
    """The words for a card: its name, or its memory if it has none."""
    name = card.name.removesuffix(HYPOTHETICAL).removesuffix(", ")
    published = published_card(name)
    return published.name if published else f"{card.total_bytes / GIB:.0f}GiB"


def with_host(devices: Sequence[Device]) -> list[Device]:
    """The devices, with a CPU if they have none."""
    if any(device.kind == "cpu" for device in devices):
        return list(devices)
    return [*devices, Device("cpu", 0, HYPOTHETICAL, HOST_BYTES, HOST_BYTES, "cpu")]


def _more(planner: Planner, card: Device, request: RunRequest, count: int) -> Remedy | None:
    """The fewest cards that have room, of those with more than `count`.

    So many as have the weights at least; then each number is planned.
    """
    one = planner.on(with_host([card])).plan(request)
    least = -(-one.total_weight_bytes // card.memory.usable_bytes) if card.total_bytes else 0
    for number in range(max(count + 1, least), MOST_CARDS + 1):
        cards = [
            replace(card, ordinal=n, torch_device=f"cuda:{n}", available_bytes=card.total_bytes)
            for n in range(number)
        ]
        plan = planner.on(with_host(cards)).plan(request)
        if plan.fits:
            return Remedy(f"{number}x {name_of(card)}", plan)
    return None


def _larger(planner: Planner, card: Device, request: RunRequest) -> Remedy | None:
    """The computer of the same maker with the least memory that has room; the fastest of these."""
    published = published_card(card.name)
    if published is None:
        return None
    larger = [
        each
        for each in cards_of(published.maker)
        if each.is_unified and each.usable_bytes > card.total_bytes
    ]
    for each in sorted(larger, key=lambda each: (each.usable_bytes, -each.bytes_per_s)):
        plan = planner.on(with_host(what_if_devices([each.name]))).plan(request)
        if plan.fits:
            return Remedy(each.name, plan)
    return None


def _with_memory(
    planner: Planner, processor: str, cards: Sequence[Device], request: RunRequest
) -> Iterator[Remedy]:
    """The cards beside a CPU with the least memory that is enough for the other layers."""
    known = published_processor(processor.partition(",")[0])
    for gib in MEMORY_SIZES_GIB:
        words = f"{known.name} {gib}GB" if known else f"cpu={gib}GiB"
        plan = planner.on([*cards, *what_if_devices([words])]).plan(request)
        if plan.fits:
            beside = f"{len(cards)}x " if len(cards) > 1 else ""
            beside += f"{name_of(cards[0])} + " if cards else ""
            yield Remedy(f"{beside}{words}", plan)
            return
