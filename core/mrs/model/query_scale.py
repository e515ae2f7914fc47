"""Queries that grow with their position, for contexts beyond the trained length."""

from __future__ import annotations

from torch import Tensor

from mrs.architecture.norm_rope import QueryScale
from mrs.model.batch import ForwardBatch


def scale_queries(q: Tensor, scale: QueryScale, batch: ForwardBatch) -> None:
    """Multiply q (N, H, D) by the factor of each token's position, in place."""
    factors = query_factors(scale, batch)
    if not factors.is_cpu or bool((factors != 1).any()):  # no host waits for what a device has
        q.mul_(factors.to(q.device, q.dtype)[:, None, None])


def query_factors(scale: QueryScale, batch: ForwardBatch) -> Tensor:
    """The factors (N) of the tokens' positions, in float32."""
    positions = batch.positions if batch.positions.dim() == 1 else batch.positions[0]
    steps = ((positions + scale.offset) / scale.length).floor()
    return 1 + scale.beta * steps.log1p()
