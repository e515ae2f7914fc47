"""What was measured on this machine, remembered for later plans."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrs.plan.account import Correction
from mrs.plan.device import Device

#: Ratios outside of this say that something else was measured, another program's memory say.
PLAUSIBLE_RATIO = (0.5, 2.0)


def corrections(devices: Sequence[Device], file: Path | None = None) -> dict[str, Correction]:
    """The remembered corrections of these devices, by label; imagined devices have none."""
    known = _read(file or _default_file())
    found = {}
    for device in devices:
        entry = known.get(_key(device))
        if isinstance(entry, dict) and (correction := _correction(entry)) is not None:
            found[device.label] = correction
    return found


def remember(measured: Mapping[Device, Correction], file: Path | None = None) -> None:
    """Keep corrections beside those of other devices; a folder without room is no error."""
    path = file or _default_file()
    known = dict(_read(path))
    for device, correction in measured.items():
        low, high = PLAUSIBLE_RATIO
        known[_key(device)] = {
            "activation_ratio": min(max(correction.activation_ratio, low), high),
            "runtime_bytes": correction.runtime_bytes,
        }
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(known, indent=1))
        scratch.replace(path)
    except OSError:
        return


def _correction(entry: Mapping[str, Any]) -> Correction | None:
    ratio, runtime = entry.get("activation_ratio"), entry.get("runtime_bytes")
    low, high = PLAUSIBLE_RATIO
    if not isinstance(ratio, (int, float)) or not low <= ratio <= high:
        return None
    if runtime is not None and (type(runtime) is not int or runtime < 0):
        return None
    return Correction(float(ratio), runtime)


def _key(device: Device) -> str:
    """A kind of device; logical ones and the CPU are the same silicon."""
    if device.torch_device == "cpu":
        return f"cpu x {os.cpu_count()}"
    return f"{device.kind} {device.name}"


def _default_file() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("mrs") / "calibration.json"


def _read(path: Path) -> Mapping[str, Any]:
    """What is remembered; a missing or damaged file holds nothing."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
