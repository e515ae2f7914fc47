"""Small files of measurements of this machine, with one entry for each kind of device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mrs.devices.device import Device
from mrs.devices.processor import cpu_name
from mrs.process.files import read_at_most, replace_file

#: A larger file is not one of measurements.
MAX_FILE_BYTES = 1024**2


def device_key(device: Device) -> str:
    """The key of a device's measurements; logical devices have that of the CPU."""
    return host_key() if device.torch_device == "cpu" else f"{device.kind} {device.name}"


def host_key() -> str:
    """The key of the CPU's measurements: its name and how many cores this machine has of it."""
    return f"{cpu_name()} x {os.cpu_count()}"


def cache_file(name: str) -> Path:
    """A file of that name in the platform's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("mrs") / name


def read_entries(path: Path) -> dict[str, Any]:
    """The entries of a file; none if the file is missing or damaged."""
    try:
        content: Any = json.loads(read_at_most(path, MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def write_entries(path: Path, entries: Mapping[str, Any]) -> None:
    """Replace the whole file; a folder that cannot be written is not an error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [json.dumps(entries, indent=1).encode()])
