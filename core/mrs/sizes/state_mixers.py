"""Workspace of mixers with recurrent states that the native library computes in one call."""

from __future__ import annotations

from typing import NamedTuple


class LinearAttentionSizes(NamedTuple):
    """Values of a token: all keys, all values, heads, steps of the decay, and what is between."""

    keys: int
    values: int
    heads: int
    steps: int
    inner: int = 0


def linear_attention_floats(sizes: LinearAttentionSizes) -> int:
    """float32 values per token: q, k; v, result and gate; decays, betas, values in between."""
    return 2 * sizes.keys + 3 * sizes.values + sizes.steps + sizes.heads + sizes.inner


def mamba2_floats(projected: int, values: int, heads: int) -> int:
    """float32 values per token: the projection, the values of all heads, their steps."""
    return projected + values + heads
