"""The manual layer map of `--num-device-layers`: `16`, or `0:16;1:16`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mrs.devices.device import DeviceMemory
from mrs.errors import UsageError
from mrs.plan.placement.placement import Placement

FLAG = "--num-device-layers"
EXPECTED = "expected a count such as 16, or ordinal:count pairs such as 0:16;1:16"
_NUMBER = re.compile(r"[0-9]{1,9}")


def parse_layer_map(text: str) -> list[tuple[int, int]]:
    """`(ordinal, layer_count)` pairs in the given order; a single count is for accelerator 0.

    UsageError quotes the pair that cannot be parsed, or the ordinal that is given twice.
    """
    if _NUMBER.fullmatch(text.strip()):
        return [(0, int(text))]
    pairs: list[tuple[int, int]] = []
    for pair in text.split(";"):
        ordinal, colon, count = (field.strip() for field in pair.partition(":"))
        if not (colon and _NUMBER.fullmatch(ordinal) and _NUMBER.fullmatch(count)):
            raise UsageError(f"{pair.strip()!r} is not a layer count", where=FLAG, hint=EXPECTED)
        if int(ordinal) in dict(pairs):
            raise UsageError(
                f"ordinal {int(ordinal)} is given twice, again in {pair.strip()!r}",
                where=FLAG,
                hint="give each ordinal once",
            )
        pairs.append((int(ordinal), int(count)))
    return pairs


def manual_placement(
    pairs: Sequence[tuple[int, int]], layer_count: int, devices: Sequence[DeviceMemory]
) -> Placement:
    """The placement that the pairs describe; all other layers go to the CPU.

    UsageError if an ordinal is not that of an accelerator, if the pairs have more layers than the
    model, or if layers remain and there is no CPU. Does not check whether the layers fit.
    """
    accelerators = {d.ordinal: index for index, d in enumerate(devices) if d.kind != "cpu"}
    layers: list[tuple[int, int]] = []
    left = layer_count
    for ordinal, count in pairs:
        if ordinal not in accelerators:
            known = ", ".join(map(str, sorted(accelerators)))
            raise UsageError(
                f"{f'{ordinal}:{count}'!r} is for an accelerator that does not exist",
                where=FLAG,
                hint=f"the ordinals here are {known}"
                if known
                else "this machine has no accelerator",
            )
        if count > left:
            given = sum(count for _, count in pairs)
            raise UsageError(
                f"{f'{ordinal}:{count}'!r} is too much: {given} layers given, {layer_count} exist",
                where=FLAG,
                hint=f"expected at most {layer_count} in all",
            )
        if count:
            layers.append((accelerators[ordinal], count))
        left -= count
    return Placement(layers + _on_cpu(left, layer_count, devices))


def _on_cpu(left: int, layer_count: int, devices: Sequence[DeviceMemory]) -> list[tuple[int, int]]:
    if not left:
        return []
    cpu = next((index for index, device in enumerate(devices) if device.kind == "cpu"), None)
    if cpu is None:
        raise UsageError(
            f"{left} of {layer_count} layers have no device",
            where=FLAG,
            hint=f"no CPU is listed for the rest; give all {layer_count} layers a device",
        )
    return [(cpu, left)]
