"""Short convolutions over tokens, each channel on its own."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_convolution(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Weighted sums of each token and those before it, (T, C) in float32.

    x is (T, C), weight (C, K) with the newest token's last, bias (C,). `state` (C, K - 1) holds
    the inputs before x and is overwritten with the last ones.
    """
    tokens, taps = x.shape[0], weight.shape[1]
    inputs = torch.cat((state.float(), x.float().T), dim=1)  # (C, K - 1 + T)
    state.copy_(inputs[:, tokens:])
    out = inputs[:, :tokens] * weight[:, :1]
    for tap in range(1, taps):
        out += inputs[:, tap : tap + tokens] * weight[:, tap : tap + 1]
    out = out.T
    return out if bias is None else out + bias
