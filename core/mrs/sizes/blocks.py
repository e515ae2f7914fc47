"""How many blocks of a paged KV cache tokens take. No torch: the planner counts with it, too."""

from __future__ import annotations

#: Tokens of a block, unless another size is asked for: as many as attention takes in one step.
BLOCK_TOKENS = 64


def blocks_of(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Blocks that hold so many tokens of a sequence, from its first on."""
    return -(-tokens // block_tokens)


def window_blocks(
    tokens: int, window: int, chunk_tokens: int, block_tokens: int = BLOCK_TOKENS
) -> int:
    """Blocks that hold what a chunk of new tokens attends to, wherever it begins.

    Those are the chunk and the window before its first token, of a sequence of `tokens`.
    """
    visible = window - 1 + chunk_tokens
    return min(blocks_of(tokens, block_tokens), blocks_of(visible - 1, block_tokens) + 1)
