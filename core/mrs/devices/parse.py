"""Read devices from text: `cuda:0=24GiB`, `cuda:0=RTX 4090`, and logical devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mrs.devices.apple import working_set_bytes
from mrs.devices.device import HYPOTHETICAL, Device, DeviceKind
from mrs.devices.host_memory import HostMemory
from mrs.devices.published_cards import Card, find_card, near_names
from mrs.devices.published_processors import (
    Processor,
    near_processors,
    published_processor,
    with_memory,
)
from mrs.devices.variables import LOGICAL_VARIABLE
from mrs.errors import UsageError
from mrs.units import human_bytes, parse_bytes

FLAG = "--device"
EXPECTED = (
    'expected such as "RTX 4090", "2x RTX 3090", "EPYC 9654 768GB", cuda:0=24GiB, '
    "cuda:1=16GiB,bandwidth=448GB/s or cpu=64GiB"
)
#: A number with at least this many digits may be the name of a card: 4090.
DIGITS_OF_A_NAME = 4
_DEVICE = re.compile(r"(cuda|metal|cpu)(?::([0-9]{1,4}))?")
_SEVERAL = re.compile(r"([1-9][0-9]?)\s*x\s+(.+)")
_BARE_NUMBER = re.compile(r"[0-9.]+")


def what_if_devices(texts: Sequence[str]) -> list[Device]:
    """The devices that `--device` describes, with all memory free: accelerators, then the CPU.

    UsageError quotes the wrong text.
    """
    devices: list[Device] = []
    for text in (each for given in texts for each in _spelled_out(given)):
        device = _what_if_device(_with_label(text, devices))
        if device.label in (known.label for known in devices):
            raise UsageError(
                f"{device.label} is given twice", where=FLAG, hint="give each device once"
            )
        devices.append(device)
    return sorted(devices, key=lambda device: device.kind == "cpu")


def _spelled_out(text: str) -> list[str]:
    """`2x RTX 3090` as two cards; any other text as it is."""
    match = _SEVERAL.fullmatch(text.strip())
    return [match[2]] * int(match[1]) if match else [text]


def _with_label(text: str, devices: Sequence[Device]) -> str:
    """A name alone (`RTX 4090`, `4090`, `M4 Max 64GB`, `EPYC 9654 768GB`) with a free label."""
    card = None if "=" in text else find_card(text)
    if card is None:
        is_processor = with_memory(text) or published_processor(text)
        return f"cpu={text}" if "=" not in text and is_processor else text
    kind = "metal" if card.is_apple else "cuda"
    used = {device.ordinal for device in devices if device.kind == kind}
    ordinal = next(number for number in range(len(used) + 1) if number not in used)
    return f"{kind}:{ordinal}={card.name}"


def _what_if_device(text: str) -> Device:
    label, equals, values = text.partition("=")
    match = _DEVICE.fullmatch(label.strip())
    if match is None or not equals or (match[1] == "cpu" and match[2]):
        raise UsageError(
            f"{text!r} is not a device", where=FLAG, hint=EXPECTED if equals else _similar(text)
        )
    kind: DeviceKind = "cuda" if match[1] == "cuda" else "metal" if match[1] == "metal" else "cpu"
    ordinal = int(match[2] or 0)
    memory, *options = (value.strip() for value in values.split(","))
    given = _bandwidth(options, text)
    if kind == "cpu" and (processor := _processor(memory, text)) is not None:
        name, size, published = processor[0].name, processor[1], processor[0].bytes_per_s
        shares = False
    elif (card := _card(memory, kind, text)) is not None:
        name, size, published = card.name, card.usable_bytes, card.bytes_per_s
        shares = card.is_unified
    else:
        name, size, published = "", _bytes(memory, "GiB", FLAG), None
        shares = kind == "metal"
        # A Mac's memory is that of the computer, also where only its size is known.
        size = working_set_bytes(size) if shares else size
    return Device(
        kind=kind,
        ordinal=ordinal,
        name=f"{name}, {HYPOTHETICAL}" if name else HYPOTHETICAL,
        total_bytes=size,
        available_bytes=size,
        torch_device={"cuda": f"cuda:{ordinal}", "metal": "mps", "cpu": "cpu"}[kind],
        bandwidth_bytes_per_s=given or published,
        bandwidth_source="given" if given else "published" if published else None,
        shares_host_memory=shares,
    )


def _similar(text: str) -> str:
    """Names of devices that resemble a text, as a hint."""
    near = near_names(text) or near_processors(text)
    return f"similar names: {', '.join(near)}" if near else EXPECTED


def _processor(name: str, text: str) -> tuple[Processor, int] | None:
    """The processor of that name and its memory; None if it is a size or a card."""
    if (found := with_memory(name)) is not None:
        return found
    processor = published_processor(name)
    if processor is None:
        return None
    raise UsageError(
        f"{text.removeprefix('cpu=')!r} lacks its memory",
        where=FLAG,
        hint=f'write such as "{processor.name} 64GB"',
    )


def _card(name: str, kind: DeviceKind, text: str) -> Card | None:
    """The card of that name; None if it is a size. UsageError lists cards with similar names."""
    card = find_card(name)
    if card is None:
        if name[:1].isdigit():
            return None
        raise UsageError(
            f"{name!r} in {text!r} is neither a size nor a known device",
            where=FLAG,
            hint=_similar(name),
        )
    if kind != ("metal" if card.is_apple else "cuda"):
        raise UsageError(
            f"{card.name} in {text!r} is not a {kind} device", where=FLAG, hint=EXPECTED
        )
    return card


def _bandwidth(options: Sequence[str], text: str) -> float | None:
    """Bytes a second from `bandwidth=448GB/s`, which is the only option."""
    if not options:
        return None
    key, _, value = options[0].partition("=")
    if key.strip() != "bandwidth" or len(options) > 1:
        raise UsageError(f"{options[-1]!r} in {text!r} is unknown", where=FLAG, hint=EXPECTED)
    return float(_bytes(value.strip().removesuffix("/s"), "GB", FLAG, "/s"))


def _bytes(text: str, unit: str, where: str, suffix: str = "") -> int:
    """The size that a text with a unit gives, above 0; `unit` is the one that the hint proposes."""
    if _BARE_NUMBER.fullmatch(text):
        hint = f"write {text}{unit}{suffix}"
        if len(text) >= DIGITS_OF_A_NAME and (near := near_names(text)):
            hint += f", or the name of a card such as {near[0]}"
        raise UsageError(f"{text!r} has no unit", where=where, hint=hint)
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise UsageError(str(error), where=where) from None
    if size <= 0:
        raise UsageError(
            f"{text!r} is not above 0", where=where, hint=f"write such as 24{unit}{suffix}"
        )
    return size


def logical_devices(text: str, host: HostMemory) -> list[Device]:
    """Accelerators that stand for the CPU, from `cpu,cpu` or `cpu=2GiB,cpu=4GiB`.

    They have the ordinals 0, 1, … and their tensors are in host memory, so a split placement can
    run on a machine without a GPU. Available memory of the host that no device has by its size is
    shared equally between the devices without a size and the CPU, so that no byte counts twice.
    UsageError quotes the wrong part, or says that the sizes exceed the host's memory.
    """
    sizes: list[int | None] = []
    for part in text.split(","):
        kind, equals, size = part.strip().partition("=")
        if kind != "cpu":
            raise UsageError(
                f"{part.strip()!r} is not a logical device",
                where=LOGICAL_VARIABLE,
                hint="expected such as cpu,cpu or cpu=2GiB,cpu=4GiB",
            )
        sizes.append(_bytes(size, "GiB", LOGICAL_VARIABLE) if equals else None)
    unsized, sized_bytes = sum(size is None for size in sizes), sum(size or 0 for size in sizes)
    if sized_bytes > host.total_bytes:
        raise UsageError(
            f"the sizes add up to {human_bytes(sized_bytes)}, but this machine has "
            f"{human_bytes(host.total_bytes)}",
            where=LOGICAL_VARIABLE,
            hint=f"give smaller sizes, or plan for other machines with {FLAG}",
        )
    left = max(0, host.available_bytes - sized_bytes)
    share = left // (unsized + 1)
    return [
        Device(
            kind="cuda",
            ordinal=ordinal,
            name="logical device on the CPU",
            total_bytes=share if size is None else size,
            available_bytes=share if size is None else size,
            torch_device="cpu",
        )
        for ordinal, size in enumerate(sizes)
    ]
