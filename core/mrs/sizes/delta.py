"""What the gated delta rule takes."""

from __future__ import annotations

#: Tokens whose corrections of the state are found together, by one triangular system a head.
CHUNK_TOKENS = 64


def chunk_bytes(tokens: int, heads: int, key_dim: int, value_dim: int) -> int:
    """Of one chunk C of `tokens` new ones: (C, C) matrices and (C, Dv) values for each head.

    Two matrices, corrections, wanted values, what masks a matrix and the sums of decays stay.
    Beside them two more matrices and a third list of values; or the sum of two lists; or keys
    (C, D), their decays and what is added to the state.
    """
    chunk = min(CHUNK_TOKENS, tokens)
    matrix = 4 * heads * chunk * chunk
    keys, values = 4 * heads * chunk * key_dim, 4 * heads * chunk * value_dim
    state = 4 * heads * key_dim * value_dim
    decays = 4 * heads * chunk
    held = 2 * matrix + 3 * values + chunk * chunk + 2 * decays
    return held + max(2 * matrix, 2 * values, keys + decays + state)
