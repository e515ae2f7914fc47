"""Bytes for fields of specs that no formula of activations counts.

A field that is not named here may be computed with any number of tensors. The plan then has room
for some as wide as the widest of the layer, so that it does not fall short in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape
from mrs.layers.known_fields import SETTLED, Known, unknown_fields, with_fields

if TYPE_CHECKING:
    from mrs.architecture.model_spec import ModelSpec
    from mrs.layers.layer import Layer

#: Float32 tensors of all new tokens for each such field.
_TENSORS = 4
#: What the formulas of this folder count, by the name of the spec.
COUNTED: Known = with_fields(
    SETTLED,
    JoinedInput="norm feeds_normed heads chained",
    FirstInput="width",
    Mlp="down_bias",
    Attention="key_bias",
    CrossAttention="input_norm bias",
)
#: Parts of a model with bytes of their own.
_APART = ("layers", "vision", "pooler", "ranking")


def uncounted_layer_bytes(layer: Layer, hidden_size: int, shape: ForwardShape) -> int:
    """Room for the fields of a layer and its modules that no formula counts."""
    unknown = len(list(unknown_fields(layer, COUNTED, path="planned")))
    if not unknown:
        return 0
    sizes = [max(slot.rows, slot.shape[-1]) for slot in layer.slots(hidden_size)]
    return unknown * _TENSORS * 4 * shape.tokens * max(hidden_size, *sizes)


def uncounted_model_bytes(spec: ModelSpec, shape: ForwardShape) -> int:
    """Room for the fields of a model outside of its layers that no formula counts."""
    unknown = len(list(unknown_fields(spec, COUNTED, apart=_APART)))
    return unknown * _TENSORS * 4 * shape.tokens * spec.hidden_size
