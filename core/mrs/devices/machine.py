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
EXPECTED = "expected such as big=cuda:0=24GiB,cpu=64GiB,link=10Gbit/s"
#: A machine whose link is not given has the usual Ethernet.
LINK_BYTES_PER_S = 1e9 / 8
_DEVICE = re.compile(r"(cuda|metal|cpu)(:[0-9]+)?=.*")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?)bit/s")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Machine:
    """Devices that share a link of `link_bytes_per_s` to other machines."""

    name: str
    devices: Sequence[Device]
    link_bytes_per_s: float = LINK_BYTES_PER_S


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
    link = LINK_BYTES_PER_S
    for value in map(str.strip, values.split(",")):
        if _DEVICE.fullmatch(value):
            devices.append(value)
        elif value.startswith("link="):
            link = _rate(value.removeprefix("link="), text)
        elif value.startswith("bandwidth=") and devices:
            devices[-1] += f",{value}"
        else:
            raise UsageError(f"{value!r} in {text!r} is unknown", where=FLAG, hint=EXPECTED)
    if not devices:
        raise UsageError(f"{text!r} has no device", where=FLAG, hint=EXPECTED)
    return Machine(name.strip(), with_bandwidth(what_if_devices(devices)), link)


def _rate(rate: str, text: str) -> float:
    """Bytes a second of `10Gbit/s`."""
    match = _RATE.fullmatch(rate.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"{rate!r} in {text!r} is not a rate", where=FLAG, hint=EXPECTED)
    return float(match[1]) * _FACTORS[match[2]] / 8
