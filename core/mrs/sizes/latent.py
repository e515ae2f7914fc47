"""What attention to latent vectors takes where torch computes it."""

from __future__ import annotations

#: Where many heads share one head of keys, only a step through them bounds the scores in memory.
SCORES_AT_ONCE = 1 << 24


def heads_at_once(tokens: int, context_tokens: int) -> int:
    """Heads of `tokens` queries that attend together."""
    return max(SCORES_AT_ONCE // (tokens * context_tokens), 1)
