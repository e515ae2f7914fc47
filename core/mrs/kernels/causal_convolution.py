"""Depthwise causal convolution over tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise, recurrent
from mrs.kernels.native_limits import MAX_TAPS
from mrs.kernels.nonlinearities import activated


def causal_convolution(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, *, silu: bool = False
) -> Tensor:
    """Convolve each channel over the last K tokens: x (T, C) to (T, C) in float32.

    weight is (C, K), its last column that of the newest token; bias is (C,). `state` (C, K - 1)
    has the inputs before x in float32, and is overwritten with the last K - 1 inputs. `silu` is
    applied to the result.
    """
    tokens, taps = x.shape[0], weight.shape[1]
    library = elementwise.library_for(x) if taps <= MAX_TAPS else None
    if library is not None and x.stride(1) == 1 and state.is_contiguous():
        return recurrent.convolve(library, x, state, weight, bias, silu)
    inputs = torch.cat((state, x.float().T), dim=1)  # (C, K - 1 + T)
    state.copy_(inputs[:, tokens:])
    out = inputs[:, :tokens] * weight[:, :1]
    for tap in range(1, taps):
        out += inputs[:, tap : tap + tokens] * weight[:, tap : tap + 1]
    if bias is not None:
        out += bias[:, None]
    del inputs  # so that no more memory than for the products is needed
    return activated("silu", out.T.contiguous()) if silu else out.T
