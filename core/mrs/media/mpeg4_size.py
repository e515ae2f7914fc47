"""The size of MPEG-4 frames, as the head of a stream says it: mp4 files leave it to the decoder."""

from __future__ import annotations

import re

#: The start of a video object layer, and the most bytes of the head that follows.
_START = re.compile(rb"\x00\x00\x01[\x20-\x2f]")
_HEAD_BYTES = 48
#: Bits of ISO/IEC 14496-2, 6.2.3, up to the resolution of times: random access, type, identifier,
#: aspect ratio, control parameters, and the shape, which is a rectangle.
_HEAD = re.compile(
    r"[01]{9}(?:0|1[01]{7})(?:1111[01]{16}|(?!1111)[01]{4})(?:0|1[01]{3}(?:0|1[01]{79}))001([01]{16})1"
)
#: Then the time of a frame, of a length that depends on the resolution, the width and the height.
_SIZE = "(?:0|1[01]{%d})1([01]{13})1([01]{13})1"


def mpeg4_size(head: bytes) -> tuple[int, int] | None:
    """Pixels along the edges of frames; None if `head` does not say that in the usual way."""
    start = _START.search(head)
    if start is None:
        return None
    layer = head[start.end() : start.end() + _HEAD_BYTES]
    bits = "".join(f"{byte:08b}" for byte in layer)
    times = _HEAD.match(bits)
    if times is None:
        return None
    time_bits = max((int(times[1], 2) - 1).bit_length(), 1)
    size = re.compile(_SIZE % time_bits).match(bits, times.end())
    return None if size is None else (int(size[1], 2), int(size[2], 2))
