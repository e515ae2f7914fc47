"""The input of the first layer, if it is not the embedding alone."""

from __future__ import annotations

from torch import Tensor

from mrs.layers.first_input.spec import FirstInput
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class FirstInputModule:
    """norm(token + position + token type), mapped to the hidden size."""

    def __init__(self, config: FirstInput, weights: ModelWeights) -> None:
        self._first_position = config.first_position
        self._positions = weights.optional_vector("positions.weight")
        self._types = weights.optional_vector("token_types.weight")
        self._norm = weights.norm("input_norm", config.norm) if config.norm else None
        self._map = weights.linear("input_map") if config.width is not None else None

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """The embeddings x (N, width) of the tokens to (N, hidden); overwrites x."""
        if self._positions is not None:
            rows = batch.positions.to(x.device) + self._first_position
            x += self._positions[rows].to(x.dtype)
        if self._types is not None:
            types = batch.token_types
            last = len(self._types) - 1
            kinds = 0 if types is None else types.clamp(max=last).to(x.device)
            x += self._types[kinds].to(x.dtype)
        x = x if self._norm is None else self._norm(x)
        return x if self._map is None else self._map(x)
