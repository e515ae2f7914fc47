"""Peak bytes of activations in a forward pass of the engine.

Each function adds up what is allocated in each phase of a module, as the code of `mrs.model` and
`mrs.kernels` allocates it, and returns the largest sum. Letters are those of
`mrs.plan.memory.forward_pass`.
"""

from __future__ import annotations

from functools import singledispatch

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.cross_attention_spec import CrossAttention
from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.architecture.mixers.mixer import NoFeedForward, NoMixer
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.mixers.mlp_and_moe_spec import MlpAndMoe
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.mixers.parallel_mixers_spec import ParallelMixers
from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.architecture.mixers.short_convolution_spec import ShortConvolution
from mrs.architecture.model_spec import ModelSpec
from mrs.plan.memory.altup_activations import altup_layer_bytes, laurel_bytes, streams_bytes
from mrs.plan.memory.attention_activations import (
    attention_bytes,
    latent_attention_bytes,
    shared_attention_bytes,
    table_bytes,
)
from mrs.plan.memory.cross_activations import cross_attention_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.plan.memory.fused_activations import (
    fused_attention_bytes,
    fused_layer_bytes,
    fused_mlp_bytes,
)
from mrs.plan.memory.kda_activations import kda_bytes
from mrs.plan.memory.layer_input_activations import gated_input_bytes
from mrs.plan.memory.mamba2_activations import mamba2_bytes
from mrs.sizes.delta_rule_workspace import chunk_bytes, native_bytes
from mrs.sizes.quantization import decoding_bytes
from mrs.storage import Storage


@singledispatch
def module_bytes(
    module: object, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak bytes of a mixer, an MLP or experts, without the input (T, h); one case per spec."""
    raise TypeError(f"no activations are known for {type(module).__name__}")


@module_bytes.register
def _(mlp: Mlp, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    return _mlp_bytes(mlp, shape, hidden_size, storage_of, "ffn")


def _mlp_bytes(
    mlp: Mlp, shape: ForwardShape, hidden_size: int, storage_of: StorageOf, slot: str
) -> int:
    """Peak of these phases. I is the size of one intermediate tensor (T, intermediate).

    up        gate(x), if gated, and up_proj
    activate  2 I (native kernels overwrite the gate), 3 I in torch; 3 I and 7 I if clamped;
              4 I and a mask for xIELU
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
        if mlp.activation == "xielu":
            activated = 4 * intermediate + shape.tokens * mlp.intermediate
        return max(into, activated, intermediate + out)
    activated = (2 if shape.native else 3) * intermediate
    if mlp.activation == "clamped_swiglu":
        activated = (3 if shape.native else 7) * intermediate
    return max(intermediate + into, activated, intermediate + out)


@module_bytes.register
def _(moe: Moe, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak of these phases.

    route    x in float32 (unless it is), and the scores of all experts three times
    experts  four lists of (token, expert) pairs, the sum, and at worst one expert that gets
             all tokens: a copy of x and its MLP
    latent   the linear maps before and after the experts, if they work on latent vectors
    shared   the sum and the shared expert; then the sum, two more of its size, and x in
             float32 if the shared expert has a gate
    """
    router = moe.router
    x = shape.size(hidden_size)
    wide_x = 4 * shape.tokens * hidden_size if shape.activation.name != "F32" else 0
    scores = wide_x + 3 * 4 * shape.tokens * router.experts
    pairs = 4 * 8 * shape.tokens * router.top_k
    width = moe.latent or hidden_size
    expert = _mlp_bytes(moe.expert, shape, width, storage_of, "ffn.experts.0")
    experts = pairs + 2 * shape.size(width) + expert
    phases = [scores, experts]
    if moe.latent is not None:
        into = product_bytes(
            shape, hidden_size, width, storage_of("ffn.latent_in"), bias=moe.latent_bias
        )
        out = product_bytes(
            shape, width, hidden_size, storage_of("ffn.latent_out"), bias=moe.latent_bias
        )
        phases += [pairs + into, shape.size(width) + experts, pairs + shape.size(2 * width) + out]
    if moe.shared is not None:
        shared = _mlp_bytes(moe.shared, shape, hidden_size, storage_of, "ffn.shared")
        phases += [x + shared, 3 * x + (wide_x if moe.shared_gate else 0)]
    return max(phases)


@module_bytes.register
def _(both: MlpAndMoe, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak of these phases. X is the size of x (T, h).

    MLP      its norm and the MLP, then the norm of the result
    experts  the result of the MLP, a norm and the experts, with x in float32 normalized for the
             router; then the norm of the result
    """
    x, norm = shape.size(hidden_size), norm_bytes(shape, hidden_size)
    mlp = x + max(norm, module_bytes(both.mlp, shape, hidden_size, storage_of))
    routed = 3 * 4 * shape.tokens * hidden_size
    moe = 2 * x + max(module_bytes(both.moe, shape, hidden_size, storage_of) + routed, norm)
    return max(mlp, moe, 2 * x + norm)


@module_bytes.register(NoMixer)
@module_bytes.register(NoFeedForward)
def _(nothing: object, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    return 0


module_bytes.register(Attention, attention_bytes)
module_bytes.register(SharedAttention, shared_attention_bytes)
module_bytes.register(CrossAttention, cross_attention_bytes)
module_bytes.register(Mamba2, mamba2_bytes)
module_bytes.register(KimiDeltaAttention, kda_bytes)


@module_bytes.register
def _(mla: LatentAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    if type(mla) is LatentAttention:
        return latent_attention_bytes(mla, shape, hidden_size, storage_of)
    from mrs.architecture.mixers.indexed_attention_spec import IndexedAttention
    from mrs.plan.memory.indexed_attention_activations import indexed_attention_bytes

    assert isinstance(mla, IndexedAttention)
    return indexed_attention_bytes(mla, shape, hidden_size, storage_of)


@module_bytes.register
def _(both: ParallelMixers, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak of these phases. X is the size of x (T, h).

    attention  X (its scaled input) and attention
    state      2 X (the result of attention, and the scaled input) and the state space
    """
    x = shape.size(hidden_size)
    attention = x + module_bytes(both.attention, shape, hidden_size, storage_of)
    return max(attention, 2 * x + module_bytes(both.state, shape, hidden_size, storage_of))


@module_bytes.register
def _(
    delta_net: GatedDeltaNet, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases.

    project     twice the input of the convolution
    throughout  input of the convolution, x in float32 (unless it is), result in float32
    plus the largest of
      convolve  3 convolution buffers of one sequence
      delta     convolution result, heads of q and k, result of one sequence, and the
                larger of: matrices of one chunk; the result in one tensor
                (native: v in one tensor and the workspace)
      gate      gate, and the larger of: gated result twice; gate and norm
      project   twice the gate, and out_proj
    """
    one = shape.of_one_sequence()
    channels, values = delta_net.channels, delta_net.value_heads * delta_net.value_dim
    wide_x = 4 * shape.tokens * (hidden_size if shape.activation.name != "F32" else 0)
    throughout = shape.size(channels) + wide_x + 4 * shape.tokens * values
    convolved = 4 * channels * (one.tokens + delta_net.kernel_tokens)
    heads = 2 * 4 * one.tokens * delta_net.value_heads * delta_net.key_dim
    result = 4 * one.tokens * values
    if shape.native:
        workspace = result + native_bytes(shape.threads, delta_net.key_dim)
    else:
        sizes = delta_net.value_heads, delta_net.key_dim, delta_net.value_dim
        workspace = max(chunk_bytes(one.tokens, *sizes), result)
    delta = convolved + heads + result + workspace
    gate = 4 * shape.tokens * values
    gating = max(2 * shape.size(values), gate + norm_bytes(shape, values)) + gate
    projection = product_bytes(shape, values, hidden_size, storage_of("mixer.out"))
    return max(
        2 * shape.size(channels),
        throughout + max(3 * convolved, delta, gating, 2 * gate + projection),
    )


@module_bytes.register
def _(conv: ShortConvolution, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak of these phases. C is the size of one tensor (T, channels).

    project in   in_proj
    convolve     5 C (three projections, input and result), and of one sequence in float32:
                 inputs, their sum and the next product (and the bias)
    project out  5 C, the gated result and out_proj
    """
    one = shape.of_one_sequence()
    channels = conv.channels
    into = product_bytes(shape, hidden_size, 3 * channels, storage_of("mixer.in"), bias=conv.bias)
    throughout = shape.size(5 * channels)
    inputs = 4 * channels * (one.tokens + conv.kernel_tokens)
    projection = product_bytes(
        shape, channels, hidden_size, storage_of("mixer.out"), bias=conv.bias
    )
    buffers = 4 if conv.bias else 3
    return max(into, throughout + buffers * inputs, throughout + shape.size(channels) + projection)


def layer_activation_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak bytes while one layer runs, its input included.

    A cross-attention layer also has the index (8 bytes) of each row that attends to images.
    """
    if layer.style == "parallel":
        return _parallel_bytes(layer, hidden_size, shape, storage_of)
    fused = fused_layer_bytes(layer, hidden_size, shape, storage_of)
    if fused is not None:
        return fused
    mixer = fused_attention_bytes(layer, hidden_size, shape, storage_of)
    if mixer is None:
        mixer = _mixer_block_bytes(layer, hidden_size, shape, storage_of)
    mlp = fused_mlp_bytes(layer, hidden_size, shape, storage_of)
    if mlp is None:
        mlp = _mlp_block_bytes(layer, hidden_size, shape, storage_of)
    row_indices = 8 * shape.tokens if layer.style == "gated" else 0
    further = 0
    if layer.gated_input is not None:
        further = gated_input_bytes(layer.gated_input, hidden_size, shape, storage_of)
    if layer.altup is not None:
        return altup_layer_bytes(layer.altup, max(mixer, mlp), further, hidden_size, shape)
    return row_indices + max(mixer, mlp, further)


def _is_scaled(layer: Layer) -> bool:
    """Whether the results of mixer and MLP are scaled before they are added."""
    return layer.residual_scale != 1.0 or layer.style == "gated"


def _parallel_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Mixer and MLP both read the norm of x. X is the size of x (T, h).

    mixer  2 X (x, norm) and the mixer
    MLP    3 X (x, norm, result of the mixer) and the MLP
    add    5 X
    """
    x = shape.size(hidden_size)
    mixer = module_bytes(layer.mixer, shape, hidden_size, storage_of)
    mlp = x + module_bytes(layer.feed_forward, shape, hidden_size, storage_of)
    return 2 * x + max(mixer, mlp, 3 * x)


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
    mixer = x + module_bytes(layer.mixer, shape, hidden_size, storage_of)
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
    mlp = x + module_bytes(layer.feed_forward, shape, hidden_size, storage_of)
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
    return tables + angles + inputs + counted + 8 * (6 * shape.tokens + 2 * shape.context_tokens)


def head_activation_bytes(spec: ModelSpec, shape: ForwardShape, head: Storage, rows: int) -> int:
    """Peak bytes of embedding, head and sampling; the `rows` of logits are float32.

    embed    rows of the embedding and their cast; or the blocks of those rows, decoded
    readout  the input of the first layer; or the norm, and the hidden states in float64
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
    if spec.readout is not None:
        return max(embedded, 2 * embedded + norm_bytes(shape, spec.hidden_size))
    product = product_bytes(
        shape, spec.hidden_size, spec.vocab_size, head, bias=spec.head_bias, tokens=rows
    )
    logits = rows * spec.vocab_size * 4
    capped = 3 * logits if spec.logit_softcap is not None else 2 * logits
    sampling = 2 * logits + 4 * spec.vocab_size * 4
    streams = streams_bytes(spec.altup, spec.hidden_size, shape, rows)
    return max(embedded, streams, product + logits, capped, sampling)
