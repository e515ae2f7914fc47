"""Machines that `--machine` describes: their devices, and their link to the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.device import Device
from mrs.devices.parse import what_if_devices
from mrs.errors import UsageError

FLAG = "--machine"
EXPECTED = "expected such as big=cuda:0=24GiB,cpu=64GiB,link=10Gbit/s,latency=0.1ms"
#: A machine whose link is not given has the usual Ethernet.
LINK_BYTES_PER_S = 1e9 / 8
#: One message between machines by TCP over Ethernet, one way.
LINK_LATENCY_S = 75e-6
_DEVICE = re.compile(r"(cuda|metal|cpu)(:[0-9]+)?=.*")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?)bit/s")
_LATENCY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(us|ms|s)")
_MOST_NODES = 64
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Machine:
    """Devices that share a link of `link_bytes_per_s` to other machines.

    A message takes `latency_s` in addition, one way. The CPU has `memory_nodes` nodes, each with
    a memory controller: a process reads as fast as one of them, several processes as fast as all.
    Processes that share layers need `sum_s` to add up, or what their kind of device is expected to.
    """

    name: str
    devices: Sequence[Device]
    link_bytes_per_s: float = LINK_BYTES_PER_S
    latency_s: float = LINK_LATENCY_S
    memory_nodes: int = 1
    sum_s: float | None = None


def parse_machines(texts: Sequence[str]) -> list[Machine]:
    """The machines in the given order. UsageError quotes the wrong text."""
    machines = [_parse_machine(text) for text in texts]
    names = [machine.name for machine in machines]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is given twice", where=FLAG, hint="give each machine once")
    return machines


def _parse_machine(text: str) -> Machine:
    name, equals, values = text.partition("=")
    if not name.strip() or not equals or _DEVICE.fullmatch(text):
        raise UsageError(f"{text!r} is not a machine", where=FLAG, hint=EXPECTED)
    devices: list[str] = []
    link, latency_s, nodes = LINK_BYTES_PER_S, LINK_LATENCY_S, 1
    for value in map(str.strip, values.split(",")):
        if _DEVICE.fullmatch(value):
            devices.append(value)
        elif value.startswith("link="):
            link = _rate(value.removeprefix("link="), text)
        elif value.startswith("latency="):
            latency_s = _seconds(value.removeprefix("latency="), text)
        elif value.startswith("nodes="):
            nodes = _nodes(value.removeprefix("nodes="), text)
        elif value.startswith("bandwidth=") and devices:
            devices[-1] += f",{value}"
        else:
            raise UsageError(f"{value!r} in {text!r} is unknown", where=FLAG, hint=EXPECTED)
    if not devices:
        raise UsageError(f"{text!r} has no device", where=FLAG, hint=EXPECTED)
    known = with_bandwidth(what_if_devices(devices))
    return Machine(name.strip(), known, link, latency_s, nodes)


def _nodes(count: str, text: str) -> int:
    """The memory nodes of `2`."""
    if count not in map(str, range(1, _MOST_NODES + 1)):
        raise UsageError(f"{count!r} in {text!r} is no number of nodes", where=FLAG, hint=EXPECTED)
    return int(count)


def _seconds(latency: str, text: str) -> float:
    """Seconds of `0.2ms`."""
    match = _LATENCY.fullmatch(latency.strip())
    if match is None:
        raise UsageError(f"{latency!r} in {text!r} is not a time", where=FLAG, hint=EXPECTED)
    return float(match[1]) * _SECONDS[match[2]]


def _rate(rate: str, text: str) -> float:
    """Bytes a second of `10Gbit/s`."""
    match = _RATE.fullmatch(rate.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"{rate!r} in {text!r} is not a rate", where=FLAG, hint=EXPECTED)
    return float(match[1]) * _FACTORS[match[2]] / 8
