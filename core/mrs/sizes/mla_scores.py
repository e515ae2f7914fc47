"""Size of the scores of multi-head latent attention (MLA) in torch."""

from __future__ import annotations

#: Most scores in memory. All heads share one key head, so torch processes some heads at a time.
SCORES_AT_ONCE = 1 << 24


def heads_at_once(tokens: int, context_tokens: int) -> int:
    """Heads that attend together, with `tokens` queries each."""
    return max(SCORES_AT_ONCE // (tokens * context_tokens), 1)
