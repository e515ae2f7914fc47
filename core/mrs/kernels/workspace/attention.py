"""Workspace of attention: in the native library, and of what torch has at once."""

from __future__ import annotations

#: float32 values in a vector register, by path.
LANES = {
    "amx": 16,
    "avx512_bf16": 16,
    "avx512": 16,
    "avx_vnni": 8,
    "avx2": 8,
    "neon": 4,
    "portable": 4,
}
#: Query heads of one token that one task processes, and keys that are processed in one step, as in
#: native/attention/attention.h.
TASK_HEADS = 8
STEP_KEYS = 64
#: Prompts are processed in blocks of ROW_VECTORS vectors of queries, as in
#: native/attention/attend_rows.inc.h.
ROW_VECTORS = 4
#: FlashInfer's memory for partial results, as it recommends, which all layers of a GPU share; and
#: what it allocates for the layout of batches, for layers of one kind.
FLASHINFER_BYTES, FLASHINFER_LAYOUT_BYTES = 128 << 20, 8 << 20
#: Tokens of an encoder's layer with a window that attend at a time.
WINDOW_QUERIES = 256


def workspace_bytes(path: str, group: int, key_dim: int, value_dim: int, *, tokens: int) -> int:
    """Bytes that each thread allocates while the `tokens` new tokens of one sequence attend.

    `group` query heads share one key head. With few queries (`tokens * group`) the workspace is
    some queries and their scores of STEP_KEYS keys. With many it is one block, in float32: its
    queries, its outputs, scores of STEP_KEYS keys, those keys or values, and seven values per
    query.
    """
    rows = ROW_VECTORS * LANES[path]
    if tokens == 1 or tokens * group < rows // 2:
        return 4 * TASK_HEADS * (key_dim + STEP_KEYS)
    floats = rows * (key_dim + value_dim + 7) + STEP_KEYS * (max(key_dim, value_dim) + rows)
    return 4 * floats + 24


#: Rows of a task over quantized keys, as in native/attention/attention.h.
CODE_ROWS = 32


def code_rows_bytes(key_dim: int, value_dim: int) -> int:
    """Bytes that each thread allocates for attention over quantized keys and values.

    For each row: its outputs, steps and sums of each unit of 32 values, two codes of each value of
    the query, scores and two codes of each weight, and 52 bytes more.
    """
    row = 4 * value_dim + 12 * (key_dim // 32) + 2 * key_dim + 6 * STEP_KEYS + 52
    return 48 + CODE_ROWS * row


#: Rows of a sequence for which keys are chosen at a time, as in native/attention/choice.c.
CHOICE_ROWS = 32


def choosing_bytes(tokens: int, context_tokens: int, key_dim: int, threads: int) -> int:
    """Bytes that the native choice of keys allocates for `tokens` new tokens of a sequence.

    The scores of some rows, and in each thread the queries and scores of some heads.
    """
    scores = 4 * min(tokens, CHOICE_ROWS) * context_tokens
    return scores + threads * 4 * TASK_HEADS * (key_dim + STEP_KEYS)


#: Most scores in memory. All heads share one key head, so torch processes some heads at a time.
SCORES_AT_ONCE = 1 << 24


def heads_at_once(tokens: int, context_tokens: int) -> int:
    """Heads that attend together, with `tokens` queries each."""
    return max(SCORES_AT_ONCE // (tokens * context_tokens), 1)


#: Most values of keys in memory at once.
VALUES_AT_ONCE = 1 << 24


def queries_at_once(keys: int, key_dim: int) -> int:
    """Queries that attend together, to `keys` keys each."""
    return max(VALUES_AT_ONCE // (keys * key_dim), 1)
