"""How long a table of rotary angles is."""

from __future__ import annotations

LEAST_ROWS = 256


def grown_rows(needed_rows: int, rows: int = 0) -> int:
    """Rows of the table that replaces one of `rows` where more are needed: at least twice them."""
    return max(needed_rows, 2 * rows, LEAST_ROWS)
