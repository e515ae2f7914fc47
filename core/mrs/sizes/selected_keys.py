"""Size of the keys that queries choose, of which each query has a copy."""

from __future__ import annotations

#: Most values of keys in memory at once.
VALUES_AT_ONCE = 1 << 24


def queries_at_once(keys: int, key_dim: int) -> int:
    """Queries that attend together, to `keys` keys each."""
    return max(VALUES_AT_ONCE // (keys * key_dim), 1)
