"""Depthwise causal convolution over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise, recurrent
from mrs.kernels.native_limits import MAX_TAPS
from mrs.kernels.nonlinearities import activated


def causal_convolution(
    parts: Sequence[Tensor],
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    silu: bool = False,
) -> list[Tensor]:
    """Convolve each channel over the last K tokens: parts of x (T, C) to parts in float32.

    The parts have some of the C channels each, in order. weight is (C, K), its last column that of
    the newest token; bias is (C,). `state` (C, K - 1) has the inputs before x in float32, and is
    overwritten with the last K - 1 inputs. `silu` is applied to the result.
    """
    sizes = [part.shape[1] for part in parts]
    library = elementwise.library_for(parts[0]) if weight.shape[1] <= MAX_TAPS else None
    if library is not None and state.is_contiguous() and all(x.stride(1) == 1 for x in parts):
        biases = [None] * len(parts) if bias is None else torch.split(bias, sizes)
        pieces = zip(
            parts, torch.split(state, sizes), torch.split(weight, sizes), biases, strict=True
        )
        return [recurrent.convolve(library, *each, silu) for each in pieces]
    out = _convolved(torch.cat((state, _joined(parts)), dim=1), state, weight, bias)
    if silu:
        out = activated("silu", out)
    return [part.T.contiguous() for part in torch.split(out, sizes)]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Parts (T, C) of all channels as (channels, T) in float32."""
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)).float().T


def _convolved(inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """All inputs (C, K - 1 + T) to (C, T); the state takes the last K - 1."""
    taps = weight.shape[1]
    tokens = inputs.shape[1] - taps + 1
    state.copy_(inputs[:, tokens:])
    first = inputs[:, :tokens], weight[:, :1]
    out = torch.mul(*first) if bias is None else torch.addcmul(bias[:, None], *first)
    for tap in range(1, taps):
        out.addcmul_(inputs[:, tap : tap + tokens], weight[:, tap : tap + 1])
    return out
