"""Workspace of a state space's recurrence."""

from __future__ import annotations

#: Tokens in a chunk. Chunks end at multiples of it, so that a token's result does not depend on
#: how many tokens a forward pass has.
CHUNK_TOKENS = 64


def chunk_bytes(tokens: int, heads: int, head_dim: int, state_dim: int) -> int:
    """Peak bytes for one chunk of C tokens, in float32 for each head.

    matrix (C, C)   values (C, P)   state (P, N)   decays (C)

    throughout   matrix, a boolean mask (C, C), 2 decays
    plus the largest of
      weights    matrix
      add        4 values
      state      3 values and a state
    """
    chunk = min(CHUNK_TOKENS, tokens)
    matrix, values = 4 * heads * chunk * chunk, 4 * heads * chunk * head_dim
    state, decays = 4 * heads * head_dim * state_dim, 4 * heads * chunk
    throughout = matrix + chunk * chunk + 2 * decays
    return throughout + max(matrix, 4 * values, 3 * values + state)
