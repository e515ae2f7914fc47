"""Positions as further values of queries and keys; see `mrs.architecture.alibi`."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.alibi import DIGIT_BITS, DIGITS, POSITION_VALUES
from mrs.architecture.mixers.attention_spec import Attention
from mrs.model.batch import ForwardBatch


class AlibiModule:
    """Adds them to the queries and keys of a layer."""

    def __init__(self, config: Attention, device: torch.device) -> None:
        shifts = DIGIT_BITS * torch.arange(DIGITS)
        slopes = torch.tensor(config.alibi) / config.scale  # scores are scaled after the product
        factors = torch.zeros(config.heads, POSITION_VALUES)
        factors[:, :DIGITS] = slopes[:, None] * (1 << shifts)
        self._factors, self._shifts = factors.to(device), shifts.to(device)

    def __call__(self, q: Tensor, k: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """q (N, H, D) and k (N, KV, D) to (N, H, D + V) and (N, KV, D + V)."""
        factors = self._factors.to(q.dtype).expand(len(q), -1, -1)
        positions = batch.positions.to(k.device)
        values = k.new_zeros(*k.shape[:2], POSITION_VALUES)
        digits = (positions[:, None] >> self._shifts) & ((1 << DIGIT_BITS) - 1)
        values[..., :DIGITS] = digits[:, None].to(k.dtype)
        return torch.cat((q, factors), dim=-1), torch.cat((k, values), dim=-1)
