"""Rope by the row and the column of a patch."""

from __future__ import annotations

from mrs.errors import NotReadable


def require_two_axes(head_dim: int, where: str) -> None:
    """Raises NotReadable if heads of `head_dim` values have no two equal sets of rotary pairs."""
    if head_dim % 4:
        raise NotReadable(
            f"head size {head_dim} is not a multiple of 4, as two-dimensional rope needs",
            where=where,
        )
