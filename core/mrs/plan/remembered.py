"""Small files of what was measured on this machine, one entry a kind of device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mrs.files import replace_file
from mrs.plan.device import Device


def device_key(device: Device) -> str:
    """What a measurement belongs to; logical devices and the CPU are the same silicon."""
    return host_key() if device.torch_device == "cpu" else f"{device.kind} {device.name}"


def host_key() -> str:
    """What measurements of the CPU belong to."""
    return f"cpu x {os.cpu_count()}"


def cache_file(name: str) -> Path:
    """A file of that name in the platform's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("mrs") / name


def read_entries(path: Path) -> dict[str, Any]:
    """What is remembered; a missing or damaged file holds nothing."""
    try:
        content: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_entries(path: Path, entries: Mapping[str, Any]) -> None:
    """Replace the file; a folder that cannot be written is not an error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [json.dumps(entries, indent=1).encode()])
