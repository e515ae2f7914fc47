"""Activation bytes of a whole model, beside those of its layers."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.model_spec import ModelSpec
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.forward_pass import ForwardShape, norm_bytes, product_bytes
from mrs.layers.joined_input.memory import MOST_UNREAD, join_bytes
from mrs.layers.joined_input.spec import JoinedInput
from mrs.layers.latent_attention.spec import BorrowedChoiceAttention, IndexedAttention
from mrs.quantization.storage import Storage
from mrs.quantization.workspace import decoding_bytes


def layer_inputs_bytes(spec: ModelSpec, shape: ForwardShape, storage: Mapping[str, Storage]) -> int:
    """Peak of these phases; X is the size of x (T, h), L that of all layers' inputs.

    project  2 X (embeddings) and the projection
    norm     X, L and the norm
    look up  X, 2 L, and the rows of the table and their cast; or their blocks, decoded
    """
    if spec.layer_inputs is None:
        return 0
    x, total = shape.size(spec.hidden_size), len(spec.layers) * spec.layer_inputs.size
    inputs = shape.size(total)
    weight = storage["layer_inputs.projection.weight"]
    projection = product_bytes(shape, spec.hidden_size, total, weight)
    if not spec.layer_inputs.vocab_size:
        return x + max(x + projection, inputs + norm_bytes(shape, total))
    table, rows = storage["layer_inputs.table.weight"], 2 * inputs
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


def input_map_bytes(spec: ModelSpec, shape: ForwardShape, storage: Mapping[str, Storage]) -> int:
    """Peak while normed embeddings of another width are mapped to the hidden size."""
    if not isinstance(spec.input, FirstInput) or spec.input.width is None:
        return 0
    width, weight = spec.input.width, storage["input_map.weight"]
    product = product_bytes(shape, width, spec.hidden_size, weight, bias=True)
    return shape.size(width) + max(norm_bytes(shape, width), shape.size(width) + product)


def joined_input_bytes(spec: ModelSpec, shape: ForwardShape, storage: Mapping[str, Storage]) -> int:
    """Peak while a draft head joins the embeddings and the states of its target."""
    if not isinstance(spec.input, JoinedInput):
        return 0
    return join_bytes(spec.hidden_size, shape, storage["join.weight"])


def states_bytes(spec: ModelSpec, shape: ForwardShape, batch: int) -> int:
    """The target's states of a step, and those of `batch` sequences that its head has not read.

    Each is there twice: as the target hands it out, and in the head's batch.
    """
    if not isinstance(spec.input, JoinedInput):
        return 0
    return 2 * (shape.size(spec.hidden_size) + 4 * batch * MOST_UNREAD * spec.hidden_size)


def choices_bytes(spec: ModelSpec, shape: ForwardShape) -> int:
    """The positions that each token attends to, which stay until the end of a step."""
    top_k = 0
    for layer in spec.layers:
        if isinstance(layer.mixer, BorrowedChoiceAttention):
            top_k = max(top_k, layer.mixer.top_k)
        elif isinstance(layer.mixer, IndexedAttention):
            top_k = max(top_k, layer.mixer.indexer.top_k)
    return 4 * shape.tokens * top_k if shape.context_tokens > top_k else 0
