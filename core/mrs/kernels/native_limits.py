"""What the native library can compute; of other layers, torch computes it. Without torch."""

from __future__ import annotations

#: Sizes of attention heads are multiples of this: the float32 values of the widest registers.
WIDEST_LANES = 16
#: Activation functions that the library fuses with the following product, in its order.
ACTIVATIONS = (
    *("silu", "gelu_tanh", "sigmoid", "quick_gelu", "softplus"),
    *("gelu", "relu", "relu2"),
)
#: The most tokens over which a native convolution sums, as in native/recurrent/convolution.h.
MAX_TAPS = 8


def is_native(*dims: int) -> bool:
    """Whether the native library supports keys and values with these head sizes."""
    return all(dim % WIDEST_LANES == 0 for dim in dims)
