"""Per-layer embeddings: the inputs of all layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrs.layers.layer_inputs.spec import LayerInputs
from mrs.model.model_weights import ModelWeights


class LayerInputsModule:
    """The inputs of all layers, from the tokens and their embeddings."""

    def __init__(self, config: LayerInputs, weights: ModelWeights) -> None:
        self._config = config
        self.image_row = config.image_row
        self._table = weights.matrix("layer_inputs.table") if config.vocab_size else None
        self._projection = weights.linear("layer_inputs.projection")
        self._norm = weights.norm("layer_inputs.norm", config.norm)

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """Ids (N) and their embeddings (N, hidden) to (N, layers, size)."""
        size = self._config.size
        projected = self._projection(embedded).mul_(embedded.shape[1] ** -0.5)
        out = self._norm(projected.view(len(token_ids), -1, size))
        if self._table is None:
            return out
        known = torch.where(token_ids < self._config.vocab_size, token_ids, 0)
        rows = self._table.rows(known, embedded.dtype).view(out.shape)
        return out.add_(rows, alpha=math.sqrt(size)).mul_(math.sqrt(0.5))
