"""Bytes of activations that are alive at once in our engine's forward pass.

Each function lists the moments of its part at which most is alive, as the code of `mrs.model` and
`mrs.kernels` runs them, and takes the largest. The letters are those of
`mrs.plan.memory.forward_pass`.
"""

from __future__ import annotations

from functools import singledispatch

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.cross_attention_spec import CrossAttention
from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.mixers.short_convolution_spec import ShortConvolution
from mrs.architecture.model_spec import ModelSpec
from mrs.plan.memory.attention_activations import (
    attention_bytes,
    latent_attention_bytes,
    table_bytes,
)
from mrs.plan.memory.cross_activations import cross_attention_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.plan.memory.fused_activations import (
    fused_attention_bytes,
    fused_layer_bytes,
    fused_mlp_bytes,
)
from mrs.sizes.delta_rule_workspace import chunk_bytes
from mrs.sizes.quantization import decoding_bytes
from mrs.storage import Storage


@singledispatch
def part_bytes(part: object, run: ForwardShape, hidden_size: int, kept: StorageOf) -> int:
    """Beside its input (T, h), for a mixer or a feed-forward part; one case a kind."""
    raise TypeError(f"no activations are known for {type(part).__name__}")


@part_bytes.register
def _(part: Mlp, run: ForwardShape, hidden_size: int, kept: StorageOf) -> int:
    return _mlp_bytes(part, run, hidden_size, kept, "ffn")


def _mlp_bytes(part: Mlp, run: ForwardShape, hidden_size: int, kept: StorageOf, slot: str) -> int:
    """gate(x), and up(x) beside it; gate and its activation; down of their product.

    Native kernels write over the gate. What clamps both makes five more lists beside them.
    """
    wide = run.size(part.intermediate)
    into = product_bytes(run, hidden_size, part.intermediate, kept(f"{slot}.up"), bias=part.bias)
    out = product_bytes(run, part.intermediate, hidden_size, kept(f"{slot}.down"), bias=part.bias)
    if not part.gated:
        return max(into, 2 * wide, wide + out)
    activated = 2 * wide if run.native else 3 * wide
    if part.activation == "clamped_swiglu":
        activated = 7 * wide
    return max(wide + into, activated, wide + out)


@part_bytes.register
def _(part: Moe, run: ForwardShape, hidden_size: int, kept: StorageOf) -> int:
    """Scores of all experts three times; then the sum and, at worst, one expert for all tokens.

    That takes the pairs of tokens and experts (four lists), its tokens' rows and what it needs,
    the result included. The shared expert runs beside the sum.
    """
    router = part.router
    x = run.size(hidden_size)
    wide_x = 4 * run.tokens * hidden_size if run.activation.name != "F32" else 0
    scores = wide_x + 3 * 4 * run.tokens * router.experts
    pairs = 4 * 8 * run.tokens * router.top_k
    expert = _mlp_bytes(part.expert, run, hidden_size, kept, "ffn.experts.0")
    moments = [scores, pairs + 2 * x + expert]
    if part.shared is not None:
        shared = _mlp_bytes(part.shared, run, hidden_size, kept, "ffn.shared")
        moments += [x + shared, 3 * x + (wide_x if part.shared_gate else 0)]
    return max(moments)


part_bytes.register(Attention, attention_bytes)
part_bytes.register(LatentAttention, latent_attention_bytes)
part_bytes.register(CrossAttention, cross_attention_bytes)


@part_bytes.register
def _(part: GatedDeltaNet, run: ForwardShape, hidden_size: int, kept: StorageOf) -> int:
    """What enters the convolution and what is read are held, the latter in float32.

    Before, all projections. Beside what is held, for one sequence, the convolution's three lists;
    or its result, the heads of queries and keys, and what chunks of tokens read, with the matrices
    of one or all of it in one piece; last the gate, the gated result and the projection back.
    """
    one = run.of_one_sequence()
    channels, values = part.channels, part.value_heads * part.value_dim
    wide_x = 4 * run.tokens * (hidden_size if run.activation.name != "F32" else 0)
    held = run.size(channels) + wide_x + 4 * run.tokens * values
    convolved = 4 * channels * (one.tokens + part.kernel_tokens)
    heads = 2 * 4 * one.tokens * part.value_heads * part.key_dim
    read = 4 * one.tokens * values
    chunk = chunk_bytes(one.tokens, part.value_heads, part.key_dim, part.value_dim)
    reading = convolved + heads + read + max(chunk, read)
    gate = 4 * run.tokens * values
    gating = max(2 * run.size(values), gate + norm_bytes(run, values)) + gate
    back = product_bytes(run, values, hidden_size, kept("mixer.out"))
    return max(
        2 * run.size(channels),
        held + max(3 * convolved, reading, gating, 2 * gate + back),
    )


@part_bytes.register
def _(part: ShortConvolution, run: ForwardShape, hidden_size: int, kept: StorageOf) -> int:
    """The three vectors, what enters the convolution and its result are held.

    Beside them, for one sequence, the inputs, their sum and what is added to it in float32; or
    the gated result and the projection back.
    """
    one = run.of_one_sequence()
    channels = part.channels
    into = product_bytes(run, hidden_size, 3 * channels, kept("mixer.in"), bias=part.bias)
    held = run.size(5 * channels)
    inputs = 4 * channels * (one.tokens + part.kernel_tokens)
    back = product_bytes(run, channels, hidden_size, kept("mixer.out"), bias=part.bias)
    lists = 4 if part.bias else 3
    return max(into, held + lists * inputs, held + run.size(channels) + back)


def layer_activation_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf
) -> int:
    """Everything that is alive while one layer runs, its input included.

    One that looks at pictures knows the number of each row that sees some.
    """
    if layer.style == "parallel":
        return _parallel_bytes(layer, hidden_size, run, kept)
    together = fused_layer_bytes(layer, hidden_size, run, kept)
    if together is not None:
        return together
    mixing = fused_attention_bytes(layer, hidden_size, run, kept)
    if mixing is None:
        mixing = _mixing_bytes(layer, hidden_size, run, kept)
    transforming = fused_mlp_bytes(layer, hidden_size, run, kept)
    if transforming is None:
        transforming = _transforming_bytes(layer, hidden_size, run, kept)
    rows = 8 * run.tokens if layer.style == "gated" else 0
    return rows + max(mixing, transforming)


def _is_scaled(layer: Layer) -> bool:
    """Whether what a part makes is multiplied before it is added."""
    return layer.residual_scale != 1.0 or layer.style == "gated"


def _parallel_bytes(layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf) -> int:
    """x and its norm while tokens mix; their sum with the result while the other part runs; then
    that part's result and the sum of all.
    """
    x = run.size(hidden_size)
    mixing = part_bytes(layer.mixer, run, hidden_size, kept)
    transforming = x + part_bytes(layer.feed_forward, run, hidden_size, kept)
    return 2 * x + max(mixing, transforming, 3 * x)


def _mixing_bytes(layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf) -> int:
    """x and its norm while tokens mix; x, the result and the norm of that; then the new x."""
    x = run.size(hidden_size)
    mixing = x + part_bytes(layer.mixer, run, hidden_size, kept)
    after = x + norm_bytes(run, hidden_size) if layer.style == "sandwich" else x
    added = 3 * x if _is_scaled(layer) else 2 * x
    return x + max(norm_bytes(run, hidden_size), mixing, after, added)


def _transforming_bytes(layer: Layer, hidden_size: int, run: ForwardShape, kept: StorageOf) -> int:
    """The old x and the new one; beside them its norm and the feed-forward part; or the result and
    the norm of that; then the next x.
    """
    x = run.size(hidden_size)
    transforming = x + part_bytes(layer.feed_forward, run, hidden_size, kept)
    after = x + norm_bytes(run, hidden_size) if layer.style == "sandwich" else x
    added = 3 * x if _is_scaled(layer) else 2 * x
    return 2 * x + max(norm_bytes(run, hidden_size), transforming, after, added)


def persistent_bytes(spec: ModelSpec, run: ForwardShape, batch: int) -> int:
    """What stays between layers: rotary tables and the batch's angles, one for each kind of rope,
    and small things.

    Those are the ids, positions, slots and the like of tokens (8 bytes each) and what sampling has
    counted of the vocabulary (5 bytes each, for every sequence).
    """
    ropes = {layer.mixer.rope for layer in spec.layers}
    one = run.of_one_sequence()
    tables = sum(table_bytes(rope, one) for rope in ropes if rope is not None)
    angles = sum(run.tokens * rope.dim // 2 * 4 * 2 for rope in ropes if rope is not None)
    counted = 5 * spec.vocab_size * batch
    return tables + angles + counted + 8 * (6 * run.tokens + 2 * run.context_tokens)


def head_activation_bytes(spec: ModelSpec, run: ForwardShape, head: Storage, batch: int) -> int:
    """Embedding, logits and sampling: the part that is not a layer's.

    Rows of the embedding and their cast, or what decoding them takes; logits of one row a
    sequence, three times where they are capped; sampling, with the logits and three steps of
    penalties.
    """
    embedded = run.size(spec.hidden_size) * 2
    if head.form == "blocks":
        numbers = run.tokens * spec.hidden_size
        blocks = head.format.size_bytes((run.tokens, spec.hidden_size))
        number = run.activation.block_bytes
        decoding = decoding_bytes(head.format.name, numbers, number, run.threads)
        embedded = max(embedded, blocks + decoding)
    product = product_bytes(
        run, spec.hidden_size, spec.vocab_size, head, bias=spec.head_bias, tokens=batch
    )
    logits = batch * spec.vocab_size * 4
    capped = 3 * logits if spec.logit_softcap is not None else 2 * logits
    sampling = 2 * logits + 4 * spec.vocab_size * 4
    return max(embedded, product + logits, capped, sampling)
