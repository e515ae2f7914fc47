"""Peak bytes of activations in a forward pass of the engine.

Each function adds up what is allocated in each phase of a module, as the code of `mrs.layers` and
`mrs.kernels` allocates it, and returns the largest sum. Letters are those of
`mrs.layers.forward_pass`.
"""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.graph.layer_graph import native_graph
from mrs.graph.operations import Compute
from mrs.graph.program import parts_of, program_of
from mrs.layers.altup.memory import altup_layer_bytes, streams_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.layers.laurel.memory import laurel_bytes
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.memory import gated_input_bytes
from mrs.layers.mixer import Module, loaded
from mrs.layers.rope.memory import table_bytes
from mrs.plan.memory.model_activations import choices_bytes
from mrs.plan.memory.native_activations import is_packed, native_part_bytes
from mrs.plan.memory.uncounted import uncounted_layer_bytes, uncounted_model_bytes
from mrs.quantization.storage import Storage
from mrs.quantization.workspace import decoding_bytes


def layer_activation_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak bytes while one layer runs, its input included.

    A cross-attention layer also has the index (8 bytes) of each row that attends to images.
    """
    counted = _counted_bytes(layer, hidden_size, shape, storage_of)
    return counted + uncounted_layer_bytes(layer, hidden_size, shape)


def _counted_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    graph = native_graph(
        layer,
        hidden_size,
        lambda slot: is_packed(shape, storage_of(slot)),
        is_inner=layer.altup is not None,
    )
    peak = input_bytes = 0
    computed: set[str] = set()
    for operations, is_native in parts_of(graph):
        if is_native:
            program = program_of(operations, graph)
            peak = max(peak, native_part_bytes(program, hidden_size, shape, storage_of))
            continue
        modules = {each.module for each in operations if isinstance(each, Compute)}
        computed |= modules
        if {"mixer", "ffn"} <= modules:
            peak = max(peak, _parallel_bytes(layer, hidden_size, shape, storage_of))
        elif "mixer" in modules:
            peak = max(peak, _mixer_block_bytes(layer, hidden_size, shape, storage_of))
        elif "ffn" in modules:
            peak = max(peak, _mlp_block_bytes(layer, hidden_size, shape, storage_of))
    row_indices = 8 * shape.tokens if layer.style == "gated" else 0
    if layer.gated_input is not None and (layer.altup or "gated_input" in computed):
        input_bytes = gated_input_bytes(layer.gated_input, hidden_size, shape, storage_of)
    if layer.altup is not None:
        return altup_layer_bytes(layer.altup, peak, input_bytes, hidden_size, shape)
    return row_indices + max(peak, input_bytes)


def _is_scaled(layer: Layer) -> bool:
    """Whether the results of mixer and MLP are scaled before they are added."""
    return layer.residual_scale != 1.0 or layer.style == "gated"


def _parallel_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Mixer and MLP both read the norm of x, or a norm each. X is the size of x (T, h).

    mixer  2 X (x, norm) and the mixer
    norm   3 X and the norm, if the MLP has one of its own
    MLP    3 X (x, norm, result of the mixer) and the MLP
    add    5 X
    """
    x = shape.size(hidden_size)
    mixer = _module_bytes(layer.mixer, shape, hidden_size, storage_of)
    mlp = x + _module_bytes(layer.feed_forward, shape, hidden_size, storage_of)
    norm = x + norm_bytes(shape, hidden_size) if layer.has_feed_forward_norm else 0
    return 2 * x + max(mixer, norm, mlp, 3 * x)


def _mixer_block_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Norm, mixer and residual sum, if they are not fused. X is the size of x (T, h).

    norm   X and the norm
    mixer  2 X and the mixer
    after  2 X and the norm of the result, in layers with such norms
    add    3 X, or 4 X if the result is scaled
    """
    x = shape.size(hidden_size)
    mixer = x + _module_bytes(layer.mixer, shape, hidden_size, storage_of)
    after = x + norm_bytes(shape, hidden_size) if layer.has_post_norms else x
    added = 3 * x if _is_scaled(layer) else 2 * x
    if layer.laurel is not None:
        added = laurel_bytes(layer.laurel, hidden_size, shape, storage_of)
    return x + max(norm_bytes(shape, hidden_size), mixer, after, added)


def _mlp_block_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Norm, MLP and residual sum, if not fused: like the mixer block, and X for its input."""
    x = shape.size(hidden_size)
    mlp = x + _module_bytes(layer.feed_forward, shape, hidden_size, storage_of)
    after = x + norm_bytes(shape, hidden_size) if layer.has_post_norms else x
    added = 3 * x if _is_scaled(layer) else 2 * x
    return 2 * x + max(norm_bytes(shape, hidden_size), mlp, after, added)


def persistent_bytes(spec: ModelSpec, shape: ForwardShape, batch: int) -> int:
    """Bytes that stay allocated between layers, for all kinds of rope in the model.

    per kind of rope      its table, and cosines and sines of this batch
    per sequence          counts of sampled tokens: 5 bytes per token of the vocabulary
    per token, layer      its per-layer embeddings
    per token, position   ids, positions, slots and the like: 8 bytes each
    """
    ropes = {layer.mixer.rope for layer in spec.layers}
    one = shape.of_one_sequence()
    tables = sum(table_bytes(rope, one) for rope in ropes if rope is not None)
    angles = sum(shape.tokens * rope.dim // 2 * 4 * 2 for rope in ropes if rope is not None)
    counted = 5 * spec.vocab_size * batch
    inputs = 0
    if spec.layer_inputs is not None:
        inputs = shape.size(len(spec.layers) * spec.layer_inputs.size)
    inputs += choices_bytes(spec, shape)
    indices = 8 * (6 * shape.tokens + 2 * shape.context_tokens)
    return tables + angles + inputs + counted + indices + uncounted_model_bytes(spec, shape)


def head_activation_bytes(spec: ModelSpec, shape: ForwardShape, head: Storage, rows: int) -> int:
    """Peak bytes of embedding, head and sampling; the `rows` of logits are float32.

    embed    rows of the embedding and their cast; or the blocks of those rows, decoded
    pooler   the input of the first layer; or the norm, and the hidden states in float64
    streams  several residual streams made of the embeddings, or joined
    head     the product and the logits
    softcap  the logits three times (twice without a softcap)
    sample   the logits twice, and four vectors of the vocabulary for penalties
    """
    embedded = shape.size(spec.hidden_size) * 2
    if head.form == "blocks":
        values = shape.tokens * spec.hidden_size
        blocks = head.format.size_bytes((shape.tokens, spec.hidden_size))
        value_bytes = shape.activation.block_bytes
        decoding = decoding_bytes(head.format.name, values, value_bytes, shape.threads)
        embedded = max(embedded, blocks + decoding)
    if spec.pooler is not None:
        return max(embedded, 2 * embedded + norm_bytes(shape, spec.hidden_size))
    width = spec.embedding_size or spec.hidden_size
    product = product_bytes(shape, width, spec.vocab_size, head, bias=spec.head_bias, tokens=rows)
    logits = rows * spec.vocab_size * 4
    capped = 3 * logits if spec.logit_softcap is not None else 2 * logits
    sampling = 2 * logits + 4 * spec.vocab_size * 4
    streams = streams_bytes(spec.altup, spec.hidden_size, shape, rows)
    return max(embedded, streams, product + logits, capped, sampling)


def _module_bytes(
    module: Module, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak bytes of a mixer, an MLP or experts, without the input (T, h)."""
    count = loaded(module.own_code().activation_bytes)
    peak: int = count(module, shape, hidden_size, storage_of)
    return peak
