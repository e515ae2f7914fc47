"""What was measured on this machine, remembered for later plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrs.devices.device import Device
from mrs.devices.measurements import cache_file, device_key, read_entries, write_entries
from mrs.plan.memory.breakdown import Correction

FILE_NAME = "calibration.json"

#: Ratios outside of this say that something else was measured, another program's memory say.
PLAUSIBLE_RATIO = (0.5, 2.0)


def corrections(devices: Sequence[Device], file: Path | None = None) -> dict[str, Correction]:
    """The remembered corrections of these devices, by label; imagined devices have none."""
    known = read_entries(file or cache_file(FILE_NAME))
    found = {}
    for device in devices:
        entry = known.get(device_key(device))
        if isinstance(entry, dict) and (correction := _correction(entry)) is not None:
            found[device.label] = correction
    return found


def remember(measured: Mapping[Device, Correction], file: Path | None = None) -> None:
    """Keep corrections beside those of other devices; a folder without room is no error."""
    path = file or cache_file(FILE_NAME)
    known = read_entries(path)
    for device, correction in measured.items():
        low, high = PLAUSIBLE_RATIO
        known[device_key(device)] = {
            "activation_ratio": min(max(correction.activation_ratio, low), high),
            "runtime_bytes": correction.runtime_bytes,
        }
    write_entries(path, known)


def _correction(entry: Mapping[str, Any]) -> Correction | None:
    ratio, runtime = entry.get("activation_ratio"), entry.get("runtime_bytes")
    low, high = PLAUSIBLE_RATIO
    if not isinstance(ratio, (int, float)) or not low <= ratio <= high:
        return None
    if runtime is not None and (type(runtime) is not int or runtime < 0):
        return None
    return Correction(float(ratio), runtime)
