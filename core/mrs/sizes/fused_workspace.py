"""Workspace of what the native library computes in one call."""

from __future__ import annotations

#: Most memory of the values of a piece, such as gate and up. The allocator keeps blocks of up to
#: this size; it would return a larger one to the system, which would then clear every page again
#: for the next layer.
SCRATCH_BYTES = 31 << 20
#: The tokens of a piece are a multiple of this.
PIECE_TOKENS = 32
#: Activation functions that the library fuses with the following product, in its order.
ACTIVATIONS = (
    *("silu", "gelu_tanh", "sigmoid", "quick_gelu", "softplus"),
    *("gelu", "relu", "relu2"),
)
#: The most tokens over which a native convolution sums, as in native/recurrent/convolution.h.
MAX_TAPS = 8
#: Up to this many tokens pass several layers in one call. More tokens take so long that Ctrl-C
#: should not have to wait for several layers.
FEW_TOKENS = 16


def tokens_at_once(token_floats: int) -> int:
    """Tokens with `token_floats` values each that pass the MLP together."""
    return max(SCRATCH_BYTES // (4 * token_floats * PIECE_TOKENS), 1) * PIECE_TOKENS


def piece_tokens(tokens: int, token_floats: int) -> int:
    """Tokens of the largest of the equal pieces in which `tokens` pass the MLP."""
    pieces = -(-tokens // tokens_at_once(token_floats))
    return min(tokens, -(-tokens // (pieces * PIECE_TOKENS)) * PIECE_TOKENS)
