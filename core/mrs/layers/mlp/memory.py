"""Activation bytes of an MLP; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.layers.forward_pass import ForwardShape, StorageOf, product_bytes
from mrs.layers.mlp.spec import Mlp


def mlp_bytes(mlp: Mlp, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    return mlp_bytes_of(mlp, shape, hidden_size, storage_of, "ffn")


def mlp_bytes_of(
    mlp: Mlp, shape: ForwardShape, hidden_size: int, storage_of: StorageOf, slot: str
) -> int:
    """Peak of these phases. I is the size of one intermediate tensor (T, intermediate).

    up        gate(x), if gated, and up_proj
    activate  2 I (native kernels overwrite the gate), 3 I in torch; 3 I and 7 I if clamped;
              4 I and a mask for xIELU in torch
    down      the product of both and down_proj
    """
    intermediate = shape.size(mlp.intermediate)
    into = product_bytes(
        shape, hidden_size, mlp.intermediate, storage_of(f"{slot}.up"), bias=mlp.bias
    )
    out = product_bytes(
        shape, mlp.intermediate, hidden_size, storage_of(f"{slot}.down"), bias=mlp.bias
    )
    if not mlp.gated:
        activated = 2 * intermediate
        if mlp.activation == "xielu" and not shape.native:
            activated = 4 * intermediate + shape.tokens * mlp.intermediate
        return max(into, activated, intermediate + out)
    activated = (2 if shape.native else 3) * intermediate
    if mlp.activation == "clamped_swiglu":
        activated = (3 if shape.native else 7) * intermediate
    return max(intermediate + into, activated, intermediate + out)
