"""Peak bytes of activations in a forward pass of the engine.

What operations take follows from the life of their values. Other functions add up what is
allocated in each phase of a module, as the code of `mrs.layers` and `mrs.kernels` allocates it, and
return the largest sum. Letters are those of `mrs.layers.forward_pass`.
"""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.graph.attention_operations import image_graph
from mrs.graph.layer_graph import native_graph
from mrs.graph.program import parts_of, program_of
from mrs.graph.stream_operations import stream_graph
from mrs.layers.altup.memory import streams_bytes
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.layers.layer import Layer
from mrs.layers.mixer import Module, loaded
from mrs.layers.rope.memory import table_bytes
from mrs.plan.memory.model_activations import choices_bytes, states_bytes
from mrs.plan.memory.native_activations import is_packed, native_part_bytes
from mrs.plan.memory.torch_activations import torch_bytes
from mrs.plan.memory.uncounted import uncounted_layer_bytes, uncounted_model_bytes
from mrs.quantization.storage import Storage
from mrs.quantization.workspace import decoding_bytes


def layer_activation_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak bytes while one layer runs, its input included."""
    counted = _counted_bytes(layer, hidden_size, shape, storage_of)
    return counted + uncounted_layer_bytes(layer, hidden_size, shape)


def _counted_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Attention to images is computed natively for one sequence, and else by torch."""
    peak = _graph_bytes(layer, hidden_size, shape, storage_of)
    if isinstance(layer.mixer, CrossAttention):
        by_torch = _graph_bytes(layer, hidden_size, shape, storage_of, but="cross.")
        peak = max(peak, by_torch)
    return peak


def _graph_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf, but: str = ""
) -> int:
    """The native library computes all that it can, `but` what has weights of these names."""

    def by_library(slot: str) -> bool:
        return not (but and slot.startswith(but)) and is_packed(shape, storage_of(slot))

    graph = native_graph(layer, hidden_size, by_library, is_inner=layer.altup is not None)

    def module_bytes(name: str) -> int:
        """Peak bytes of a mixer or a feed-forward module, without the input (T, h)."""
        module: Module = layer.feed_forward if name == "ffn" else layer.mixer
        count = loaded(module.own_code().activation_bytes)
        peak: int = count(module, shape, hidden_size, storage_of)
        return peak

    cross = layer.mixer if isinstance(layer.mixer, CrossAttention) else None
    if cross is not None and not shape.image_keys:
        return shape.size(hidden_size)  # without images the layer is skipped
    peak = 0
    for index, (operations, is_native) in enumerate(parts_of(graph)):
        if is_native:
            program = program_of(operations, graph)
            peak = max(peak, native_part_bytes(program, hidden_size, shape, storage_of))
        else:
            owns = cross is not None or index > 0  # rows that attend to images are a copy
            by_torch = torch_bytes(
                operations, graph, shape, storage_of, module_bytes, owns_stream=owns
            )
            peak = max(peak, by_torch)
    if cross is not None:
        peak += 8 * shape.tokens  # the indices of those rows
        peak = max(peak, _image_bytes(cross, hidden_size, shape, storage_of))
    if layer.altup is None:
        return peak
    streams, _ = stream_graph(layer, hidden_size)
    inner = peak - shape.size(hidden_size)
    return torch_bytes(streams.operations, streams, shape, storage_of, lambda name: inner)


def _image_bytes(
    cross: CrossAttention, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak bytes while keys and values of an image are computed, with the input of the layer."""
    if not shape.new_image_keys:
        return 0
    graph, image = image_graph(cross, hidden_size), replace(shape, tokens=shape.new_image_keys)
    features = torch_bytes(graph.operations, graph, image, storage_of, lambda name: 0)
    return shape.size(hidden_size) + features


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
    inputs += choices_bytes(spec, shape) + states_bytes(spec, shape, batch)
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
