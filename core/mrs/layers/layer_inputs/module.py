"""Per-layer embeddings: the inputs of all layers, and what a layer adds of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrs.kernels.nonlinearities import gated
from mrs.layers.layer_inputs.spec import GatedInput, LayerInputs
from mrs.model.model_weights import ModelWeights


class LayerInputsModule:
    """The inputs of all layers, from the tokens and their embeddings."""

    def __init__(self, config: LayerInputs, weights: ModelWeights) -> None:
        self._config = config
        self.image_row = config.image_row
        self._table = weights.matrix("layer_inputs.table")
        self._projection = weights.linear("layer_inputs.projection")
        self._norm = weights.norm("layer_inputs.norm", config.norm)

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """Ids (N) and their embeddings (N, hidden) to (N, layers, size)."""
        size = self._config.size
        projected = self._projection(embedded).mul_(embedded.shape[1] ** -0.5)
        out = self._norm(projected.view(len(token_ids), -1, size))
        known = torch.where(token_ids < self._config.vocab_size, token_ids, 0)
        rows = self._table.rows(known, embedded.dtype).view(out.shape)
        return out.add_(rows, alpha=math.sqrt(size)).mul_(math.sqrt(0.5))


class GatedInputModule:
    """What one layer adds to x."""

    def __init__(self, config: GatedInput, weights: ModelWeights) -> None:
        self._activation = config.activation
        self._gate = weights.linear("input.gate")
        self._projection = weights.linear("input.projection")
        self._norm = weights.norm("input.norm", config.norm)

    def __call__(self, x: Tensor, layer_input: Tensor) -> Tensor:
        """x (N, hidden) and the layer's input (N, size) to (N, hidden)."""
        inner = gated(self._activation, self._gate(x), layer_input.to(x.dtype).contiguous())
        return self._norm(self._projection(inner))
