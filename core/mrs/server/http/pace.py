"""How long the body of a request may take: a limit for all of it, which grows with what comes."""

from __future__ import annotations

#: A body that is slower than this is cut off once its start is used up: 128 kbit/s.
LEAST_BYTES_PER_S = 16 * 1024


def allowed_s(start_s: float, received_bytes: int) -> float:
    """Seconds after the head in which a body of `received_bytes` so far may be incomplete."""
    return start_s + received_bytes / LEAST_BYTES_PER_S
