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

    throughout   pairs, 4 matrices, 2 values
    plus the larger of
      scores     pairs
      update     6 values and a state
    """
    chunk = min(CHUNK_TOKENS, tokens)
    pairs, values = chunk * chunk * head_dim, chunk * head_dim
    throughout = pairs + 4 * chunk * chunk + 2 * values
    return 4 * heads * (throughout + max(pairs, 6 * values + head_dim**2))
