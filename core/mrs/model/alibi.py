"""Positions as further values of queries and keys; see `mrs.architecture.alibi`."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.alibi import DIGIT_BITS, DIGITS, POSITION_VALUES, query_factors
from mrs.architecture.mixers.attention_spec import Attention
from mrs.model.batch import ForwardBatch


class AlibiModule:
    """Adds them to the queries and keys of a layer."""

    def __init__(self, config: Attention, device: torch.device) -> None:
        factors = torch.tensor(query_factors(config.alibi, config.scale), device=device)
        self._factors = factors.view(config.heads, POSITION_VALUES)

    def __call__(self, q: Tensor, k: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """q (N, H, D) and k (N, KV, D) to (N, H, D + V) and (N, KV, D + V)."""
        factors = self._factors.to(q.dtype).expand(len(q), -1, -1)
        digits = position_digits(batch).to(k.device, k.dtype)
        values = digits[:, None].expand(-1, k.shape[1], -1)
        return torch.cat((q, factors), dim=-1), torch.cat((k, values), dim=-1)


def position_digits(batch: ForwardBatch) -> Tensor:
    """The further values (N, V) of the tokens' keys, in float32."""
    shifts = DIGIT_BITS * torch.arange(DIGITS, device=batch.positions.device)
    digits = (batch.positions[:, None] >> shifts) & ((1 << DIGIT_BITS) - 1)
    return torch.nn.functional.pad(digits.float(), (0, POSITION_VALUES - DIGITS))
