"""What attention by the native library takes. No torch: the planner counts with it, too."""

from __future__ import annotations

#: Heads are whole vectors: the widest hold so many numbers.
LANES = 16
#: Queries of one token that a task takes, as in native/steps.c.
TASK_HEADS = 8
#: Many queries are taken in blocks of so many at most, with so many keys at a time, as in
#: native/attend_rows.h.
ROWS = 64
STEP_KEYS = 64


def is_native(*dims: int) -> bool:
    """Whether the native library attends over keys and values of these sizes."""
    return all(dim % LANES == 0 for dim in dims)


def workspace_bytes(
    group: int, key_dim: int, value_dim: int, *, tokens: int, context_tokens: int
) -> int:
    """Bytes that each thread takes while a sequence's `tokens` new tokens attend, at most.

    Few queries, `group` a token with one head of keys, take scores with all keys. Many take
    scores with some keys, the queries themselves, what is mixed for them, those keys in float32,
    and seven numbers a query.
    """
    one_by_one = TASK_HEADS * 4 * context_tokens
    numbers = ROWS * (key_dim + value_dim + 7) + STEP_KEYS * (max(key_dim, value_dim) + ROWS)
    blocks = 4 * numbers + 24
    if tokens == 1:
        return one_by_one
    # Paths with narrower vectors take blocks of half the size, and fewer queries one by one.
    return blocks if tokens * group >= ROWS // 2 else max(blocks, one_by_one)
