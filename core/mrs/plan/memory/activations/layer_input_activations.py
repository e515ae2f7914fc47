"""Activation bytes of embeddings by layer, and of those of another width than the layers have.

See `mrs.plan.memory.layer_activations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mrs.architecture.model_spec import ModelSpec
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.quantization.storage import Storage
from mrs.sizes.quantization import decoding_bytes

if TYPE_CHECKING:
    from mrs.architecture.layer_inputs import GatedInput


def gated_input_bytes(
    config: GatedInput, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak of these phases, its input included. X is the size of x (T, h), I that of the input.

    gate     X, I and the gate
    project  X, 3 I and the projection
    norm     2 X and the norm
    add      3 X
    """
    x, inner = shape.size(hidden_size), shape.size(config.size)
    gate = product_bytes(shape, hidden_size, config.size, storage_of("input.gate"))
    projection = product_bytes(shape, config.size, hidden_size, storage_of("input.projection"))
    norm = norm_bytes(shape, hidden_size)
    return x + max(inner + gate, 4 * inner, 3 * inner + projection, x + norm, 2 * x)


def layer_inputs_bytes(spec: ModelSpec, shape: ForwardShape, storage: Mapping[str, Storage]) -> int:
    """Peak of these phases; X is the size of x (T, h), L that of all layers' inputs.

    project  2 X (embeddings) and the projection
    norm     X, L and the norm
    look up  X, 2 L, and the rows of the table and their cast; or their blocks, decoded
    """
    if spec.layer_inputs is None:
        return 0
    x, total = shape.size(spec.hidden_size), len(spec.layers) * spec.layer_inputs.size
    table, inputs = storage["layer_inputs.table.weight"], shape.size(total)
    weight = storage["layer_inputs.projection.weight"]
    projection = product_bytes(shape, spec.hidden_size, total, weight)
    rows = 2 * inputs
    if table.form == "blocks":
        values, value_bytes = shape.tokens * total, shape.activation.block_bytes
        decoded = decoding_bytes(table.format.name, values, value_bytes, shape.threads)
        rows = table.format.size_bytes((shape.tokens, total)) + decoded
    return x + max(x + projection, inputs + norm_bytes(shape, total), 2 * inputs + rows)


def embedding_map_bytes(
    spec: ModelSpec, shape: ForwardShape, storage: Mapping[str, Storage], rows: int
) -> int:
    """Peak while embeddings are mapped to the hidden size, or some `rows` back before the head."""
    if spec.embedding_size is None:
        return 0
    hidden, width = spec.hidden_size, spec.embedding_size
    into, out = (storage[f"embedding_{way}.weight"] for way in ("in", "out"))
    back = rows * hidden * shape.activation.block_bytes
    back += product_bytes(shape, hidden, width, out, tokens=rows)
    return max(shape.size(width) + product_bytes(shape, width, hidden, into), back)
