"""The output head: from hidden states after the final norm to logits."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.model.linear import Linear
from mrs.model.model_weights import ModelWeights


class OutputHead:
    """The head of a model, which needs no other weights than those of `head_parameters`."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights) -> None:
        self._scale, self._softcap = spec.logit_scale, spec.logit_softcap
        sized = spec.embedding_size is not None
        self._embedding_out = weights.linear("embedding_out") if sized else None
        matrix = weights.matrix(spec.head_weight.removesuffix(".weight"))
        self._linear = Linear(matrix, weights.optional_vector("head.bias"))

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden), after the final norm, to logits (N, vocab) float32."""
        return self.scaled(self.project(x))

    def project(self, x: Tensor) -> Tensor:
        """The logits before scale and cap."""
        x = x if self._embedding_out is None else self._embedding_out(x)
        return self._linear(x).float()

    @property
    def scales(self) -> bool:
        return self._scale != 1.0 or self._softcap is not None

    def scaled(self, logits: Tensor) -> Tensor:
        """Logits with the model's scale and cap."""
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits


def head_parameters(spec: ModelSpec) -> frozenset[str]:
    """The names of the parameters that a head may have."""
    return frozenset((spec.head_weight, "head.bias", "embedding_out.weight", "embedding_out.bias"))
