"""The number of sequences for which a KV cache is planned if memory is the only limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mrs.plan.largest import largest


def most_sequences(
    free_bytes: Callable[[int], Sequence[int] | None], most: int, share: float
) -> int:
    """The most sequences such that all but the first take at most `share` of the memory it leaves.

    `free_bytes` is what a number of them leaves of each memory, None if it cannot be planned.
    """
    alone = free_bytes(1)
    if alone is None or most < 2:
        return 1

    def has_room(count: int) -> bool:
        left = free_bytes(count)
        return left is not None and all(
            one - many <= share * max(one, 0) for one, many in zip(alone, left, strict=True)
        )

    return largest(has_room, 2, most) or 1
