"""Refuses small JPEG files whose many scans or segments would keep a decoder busy for hours."""

from __future__ import annotations

import re

#: A progressive file has about ten scans; each one is a pass over the whole image.
MAX_SCANS = 100
#: Profiles and metadata come in pieces of 64 KiB.
MAX_SEGMENTS = 10_000

_START_OF_SCAN, _END = 0xDA, 0xD9
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_NEXT_MARKER = re.compile(rb"\xff([\x01-\xcf\xd9-\xfe])")  # no stuffed byte, no restart


def excess(content: bytes) -> str | None:
    """What the file has too many of, as in `more than 100 scans`; None for a normal file.

    Reads the structure of ITU-T T.81, annex B. Damage is left to the decoder to report.
    """
    scans = segments = 0
    at = 2
    while (marker := _NEXT_MARKER.search(content, at)) is not None:
        kind, at = marker[1][0], marker.end()
        segments += 1
        scans += kind == _START_OF_SCAN
        if scans > MAX_SCANS:
            return f"more than {MAX_SCANS} scans"
        if segments > MAX_SEGMENTS:
            return f"more than {MAX_SEGMENTS} segments"
        if kind == _END and scans:
            return None
        if kind not in _ALONE:
            at += int.from_bytes(content[at : at + 2], "big")
    return None
