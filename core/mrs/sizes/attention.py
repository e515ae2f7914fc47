"""What attention by the native library takes."""

from __future__ import annotations

#: Numbers in a vector, by path. Heads are whole vectors of the widest.
LANES = {"amx": 16, "avx512_bf16": 16, "avx512": 16, "avx2": 8, "neon": 4, "portable": 4}
WIDEST_LANES = 16
#: Queries of one token that a task takes, as in native/attention/attention.c.
TASK_HEADS = 8
#: Many queries are taken in blocks of so many vectors, with so many keys at a time, as in
#: native/attention/attend_rows.inc.h.
ROW_VECTORS = 4
STEP_KEYS = 64


def is_native(*dims: int) -> bool:
    """Whether the native library attends over keys and values of these sizes."""
    return all(dim % WIDEST_LANES == 0 for dim in dims)


def workspace_bytes(
    path: str, group: int, key_dim: int, value_dim: int, *, tokens: int, context_tokens: int
) -> int:
    """Bytes that each thread takes while a sequence's `tokens` new tokens attend.

    Few queries, `group` a token with one head of keys, take scores with all keys. Many take
    scores with some keys, the queries themselves, what is mixed for them, those keys in float32,
    and seven numbers a query.
    """
    rows = ROW_VECTORS * LANES[path]
    if tokens == 1 or tokens * group < rows // 2:
        return TASK_HEADS * 4 * context_tokens
    numbers = rows * (key_dim + value_dim + 7) + STEP_KEYS * (max(key_dim, value_dim) + rows)
    return 4 * numbers + 24
