"""Length of the table of rotary cosines and sines."""

from __future__ import annotations

LEAST_ROWS = 256


def grown_rows(needed_rows: int, rows: int = 0) -> int:
    """Rows of a table that grows from `rows` to at least `needed_rows`: it at least doubles."""
    return max(needed_rows, 2 * rows, LEAST_ROWS)
