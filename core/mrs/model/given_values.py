"""What a step gives the operations of its layers beside the stream."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.graph.operations import ChosenKeys, Given
from mrs.layers.attention.alibi import DIGIT_BITS, DIGITS, POSITION_VALUES
from mrs.layers.rope.module import query_factors
from mrs.layers.rope.spec import QueryScale
from mrs.model.batch import ForwardBatch


def given_value(batch: ForwardBatch, kind: Given, index: int) -> Tensor:
    """(N, width) or (N), in float32, of the layer `index`, on the device where it is made."""
    if kind == "layer input":
        assert batch.layer_inputs is not None
        return batch.layer_inputs[:, index].contiguous()
    if kind == "states":
        assert batch.states is not None
        return batch.states
    if isinstance(kind, ChosenKeys):
        return room_for_choice(batch, kind, torch.device("cpu"))
    if isinstance(kind, QueryScale):
        return query_factors(kind, batch)
    return _position_digits(batch)


def room_for_choice(batch: ForwardBatch, kind: ChosenKeys, device: torch.device) -> Tensor:
    """The positions (N, top_k) that the last indexer has chosen; before the first one chooses, -1.

    They are int32, called float32 as all values of native layers are. What is written there, later
    layers read: the batch keeps it.
    """
    room = batch.given.get(kind)
    if room is None:
        shape = len(batch.token_ids), kind.top_k
        room = torch.full(shape, -1, dtype=torch.int32, device=device).view(torch.float32)
    batch.given[kind] = room.to(device)
    return batch.given[kind]


def _position_digits(batch: ForwardBatch) -> Tensor:
    """The position values (N, V) of the tokens' keys, in float32."""
    shifts = DIGIT_BITS * torch.arange(DIGITS, device=batch.positions.device)
    digits = (batch.positions[:, None] >> shifts) & ((1 << DIGIT_BITS) - 1)
    return torch.nn.functional.pad(digits.float(), (0, POSITION_VALUES - DIGITS))
