"""Depthwise causal convolution over tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_convolution(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each channel over the last K tokens: x (T, C) to (T, C) in float32.

    weight is (C, K), its last column that of the newest token; bias is (C,). `state` (C, K - 1)
    has the inputs before x in float32, and is overwritten with the last K - 1 inputs.
    """
    tokens, taps = x.shape[0], weight.shape[1]
    inputs = torch.cat((state, x.float().T), dim=1)  # (C, K - 1 + T)
    state.copy_(inputs[:, tokens:])
    out = inputs[:, :tokens] * weight[:, :1]
    for tap in range(1, taps):
        out += inputs[:, tap : tap + tokens] * weight[:, tap : tap + 1]
    if bias is not None:
        out += bias[:, None]
    return out.T
