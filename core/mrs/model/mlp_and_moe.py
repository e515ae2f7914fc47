"""An MLP and a mixture of experts in parallel, in place of a layer's MLP."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.mixers.mlp_and_moe_spec import MlpAndMoe
from mrs.model.mlp import MlpModule
from mrs.model.model_weights import ModelWeights
from mrs.model.moe import MoeModule


class MlpAndMoeModule:
    """Both read a norm of x, and a norm of what each gives is added up."""

    def __init__(self, config: MlpAndMoe, weights: ModelWeights) -> None:
        self._mlp, self._moe = MlpModule(config.mlp, weights), MoeModule(config.moe, weights)
        self._norm, self._norm_1 = (weights.norm(f"ffn.{n}", config.norm) for n in _MLP_NORMS)
        self._norm_in, self._norm_2 = (weights.norm(f"ffn.{n}", config.norm) for n in _MOE_NORMS)
        self._sum_of_ranks = weights.sum_of_ranks

    @property
    def is_grouped(self) -> bool:
        return self._moe.is_grouped

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden), not normalized, to (N, hidden)."""
        dense, mixed = self._mlp(self._norm(x)), self._moe(self._norm_in(x), routed_by=x)
        if self._sum_of_ranks is not None:
            both = self._sum_of_ranks(torch.cat((dense, mixed), dim=1))
            dense, mixed = (part.contiguous() for part in both.chunk(2, dim=1))
        return self._norm_1(dense).add_(self._norm_2(mixed))


_MLP_NORMS = ("norm", "norm_1")
_MOE_NORMS = ("norm_in", "norm_2")
