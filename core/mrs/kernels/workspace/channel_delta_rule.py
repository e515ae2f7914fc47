"""Workspace of the delta rule with a decay of each channel."""

from __future__ import annotations

from mrs.kernels.workspace.delta_rule import STATE_COLUMNS

#: Tokens in a chunk, whose pairs have a decay for each channel.
CHUNK_TOKENS = 16


def native_bytes(threads: int, head_dim: int) -> int:
    """Workspace of the native library: each thread has some columns of a state, and two rows."""
    return threads * 4 * head_dim * (STATE_COLUMNS + 2)


def chunk_bytes(tokens: int, heads: int, head_dim: int) -> int:
    """Peak bytes of torch for one chunk of C tokens, in float32 for each head.

    pairs (C, C, D)   matrix (C, C)   values (C, D)   state (D, D)

    3 pairs, 4 matrices, 8 values and a state
    """
    chunk = min(CHUNK_TOKENS, tokens)
    pairs = chunk * chunk * head_dim
    return 4 * heads * (3 * pairs + 4 * chunk * chunk + 8 * chunk * head_dim + head_dim**2)
