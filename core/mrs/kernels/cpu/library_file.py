"""The file of the native library; planning asks whether it exists, without loading it."""

from __future__ import annotations

import sys
from pathlib import Path

from mrs.devices.cpu_path import cpu_path

PATH = (
    Path(__file__).parent / "native" / ("libmrs.dylib" if sys.platform == "darwin" else "libmrs.so")
)


def is_available() -> bool:
    """Whether the library was built and is not disabled; does not load it."""
    return cpu_path() != "torch" and PATH.exists()
