"""The input of a draft head's layer."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.layers.joined_input.spec import JoinedInput
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class JoinedInputModule:
    """W [norm(token); norm(state)], or with the state first."""

    def __init__(self, config: JoinedInput, weights: ModelWeights) -> None:
        self._token_norm = weights.norm("join.token_norm", config.norm)
        self._state_norm = weights.norm("join.state_norm", config.norm)
        self._product = weights.linear("join")
        self._state_first = config.state_first

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """The embeddings x (N, hidden) of the tokens, and the batch's states, to (N, hidden)."""
        assert batch.states is not None
        states = batch.states.to(x.device, x.dtype)
        halves = [self._token_norm(x), self._state_norm(states)]
        if self._state_first:
            halves.reverse()
        return self._product(torch.cat(halves, dim=-1))
