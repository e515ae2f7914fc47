"""Workspace of a state space's recurrence."""

from __future__ import annotations

#: Tokens in a chunk. Chunks end at multiples of it, so that a token's result does not depend on
#: how many tokens a forward pass has.
CHUNK_TOKENS = 64


def chunk_bytes(tokens: int, heads: int, head_dim: int, state_dim: int) -> int:
    """Peak bytes for one chunk of C tokens, in float32 for each head.

    matrix (C, C)   values (C, P)   state (P, N)

    weights   4 matrix and a boolean mask (C, C)
    then      matrix, and the larger of 4 values; 3 values and 2 states
    """
    chunk = min(CHUNK_TOKENS, tokens)
    matrix, values = 4 * heads * chunk * chunk, 4 * heads * chunk * head_dim
    state = 4 * heads * head_dim * state_dim
    return max(4 * matrix + chunk * chunk, matrix + max(4 * values, 3 * values + 2 * state))
