"""What a step gives the operations of its layers beside the stream."""

from __future__ import annotations

from torch import Tensor

from mrs.graph.operations import ChosenKeys, Given
from mrs.layers.attention.module import position_digits
from mrs.layers.latent_attention.module import chosen_positions
from mrs.layers.rope.module import query_factors
from mrs.layers.rope.spec import QueryScale
from mrs.model.batch import ForwardBatch


def given_value(batch: ForwardBatch, kind: Given, index: int) -> Tensor:
    """(N, width) or (N), in float32, of the layer `index`."""
    if kind == "layer input":
        assert batch.layer_inputs is not None
        return batch.layer_inputs[:, index].contiguous()
    if isinstance(kind, ChosenKeys):
        return chosen_positions(batch, kind.top_k)
    if isinstance(kind, QueryScale):
        return query_factors(kind, batch)
    return position_digits(batch)
