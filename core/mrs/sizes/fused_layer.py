"""What the halves of a layer take that the native library computes in one call each."""

from __future__ import annotations

from mrs.sizes.products import PROMPT_TOKENS

#: Memory for what is between gate, up and down. The allocator keeps blocks of this size; larger
#: ones it would return to the system, to have every page cleared again for the next layer.
SCRATCH_BYTES = 31 << 20
#: Activations that are computed together with the product that follows, in the library's order.
ACTIVATIONS = ("silu", "gelu_tanh")
#: As many tokens pass several layers in one call. More take so long that a Ctrl-C should not wait
#: for several layers.
FEW_TOKENS = 16


def attention_numbers(hidden_size: int, query_size: int, key_size: int) -> int:
    """Numbers that a token takes: its norm, keys and values, and queries twice."""
    return hidden_size + 2 * query_size + 2 * key_size


def feed_forward_numbers(hidden_size: int, intermediate: int) -> int:
    """Numbers that a token takes: its norm, gate and up."""
    return hidden_size + 2 * intermediate


def most_tokens(numbers: int) -> int:
    """Tokens of `numbers` each that pass a feed-forward half together: whole panels."""
    return max(SCRATCH_BYTES // (4 * numbers * PROMPT_TOKENS), 1) * PROMPT_TOKENS


def piece_tokens(tokens: int, numbers: int) -> int:
    """Tokens of the largest piece in which `tokens` pass a feed-forward half."""
    pieces = -(-tokens // most_tokens(numbers))
    return min(tokens, -(-tokens // (pieces * PROMPT_TOKENS)) * PROMPT_TOKENS)
