"""Workspace of the gated delta rule."""

from __future__ import annotations

#: Tokens in a chunk: one triangular system per head gives all their corrections of the state.
CHUNK_TOKENS = 64


def chunk_bytes(tokens: int, heads: int, key_dim: int, value_dim: int) -> int:
    """Peak bytes for one chunk of C tokens, in float32 for each head.

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
