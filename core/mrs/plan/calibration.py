"""Corrections of plans from measurements on this machine, saved for later plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrs.devices.device import Device
from mrs.devices.measurements import cache_file, device_key, read_entries, write_entries
from mrs.plan.memory.breakdown import Correction

FILE_NAME = "calibration.json"

#: A ratio outside this range is not plausible: memory of another program may have been measured.
PLAUSIBLE_RATIO = (0.5, 2.0)


def corrections(devices: Sequence[Device], file: Path | None = None) -> dict[str, Correction]:
    """The saved corrections of these devices by label; devices of `--device` have none."""
    known = read_entries(file or cache_file(FILE_NAME))
    by_label = {}
    for device in devices:
        entry = known.get(device_key(device))
        if isinstance(entry, dict) and (correction := _correction(entry)) is not None:
            by_label[device.label] = correction
    return by_label


def remember(measured: Mapping[Device, Correction], file: Path | None = None) -> None:
    """Save corrections, and keep those of other devices. A full disk is not an error."""
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
