"""Workspace of the gated delta rule."""

from __future__ import annotations

#: Tokens in a chunk: one triangular system per head gives all their corrections of the state.
CHUNK_TOKENS = 64

#: Columns of the state that a native task computes, as in native/recurrent/delta_rule.h.
STATE_COLUMNS = 32


def native_bytes(threads: int, key_dim: int) -> int:
    """Workspace of the native library: each thread has some columns of one head's state."""
    return threads * 4 * key_dim * STATE_COLUMNS


def chunk_bytes(tokens: int, heads: int, key_dim: int, value_dim: int) -> int:
    """Peak bytes of torch for one chunk of C tokens, in float32 for each head.

    matrix (C, C)   values (C, Dv)   keys (C, Dk)   state (Dk, Dv)   decays (C)

    throughout   2 matrix + 3 values + a boolean mask (C, C) + 2 decays
    plus the largest of
      solve      2 matrix
      output     2 values
      state      keys + decays + state
    """
    chunk = min(CHUNK_TOKENS, tokens)
    matrix = 4 * heads * chunk * chunk
    keys, values = 4 * heads * chunk * key_dim, 4 * heads * chunk * value_dim
    state = 4 * heads * key_dim * value_dim
    decays = 4 * heads * chunk
    throughout = 2 * matrix + 3 * values + chunk * chunk + 2 * decays
    return throughout + max(2 * matrix, 2 * values, keys + decays + state)
