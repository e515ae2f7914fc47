"""Parse and format sizes in bytes."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "k": KIB,
    "kib": KIB,
    "m": MIB,
    "mib": MIB,
    "g": GIB,
    "gib": GIB,
    "t": 1024**4,
    "tib": 1024**4,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """The bytes of a size such as `24GiB`, `24G`, `1.5 MB` or `4096`.

    ValueError for other text, and for sizes that 63 bits cannot count.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size such as 24GiB, 512MiB or 1.5GB")
    size_bytes = float(match[1]) * factor
    if size_bytes >= 2**63:
        raise ValueError(f"{text!r} is too large: sizes are below 8388608 TiB")
    return int(size_bytes)


def human_bytes(size_bytes: int) -> str:
    """A size with three significant digits and a binary unit: `1.50 GiB`."""
    if size_bytes < 0:
        return f"-{human_bytes(-size_bytes)}"
    value, unit = float(size_bytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 999.5:
            break
        value, unit = value / 1024, bigger
    if unit == "B":
        return f"{size_bytes} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def rounded_rate(value: float, digits: int = 2) -> str:
    """Tokens per second, rounded to so many digits: `7,560`."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:g}"
