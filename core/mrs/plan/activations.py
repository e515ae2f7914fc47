"""Bytes of activations that are alive at once in our engine's forward pass.

Each function lists the moments of its part at which most is alive, as the code of `mrs.model` and
`mrs.kernels` runs them, and takes the largest. The letters are those of `mrs.plan.forward_pass`.
"""

from __future__ import annotations

from functools import singledispatch

from mrs.families.spec import (
    Attention,
    CrossAttention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mlp,
    ModelSpec,
    Moe,
    ShortConvolution,
)
from mrs.plan.attention_activations import attention_bytes, latent_attention_bytes, table_bytes
from mrs.plan.cross_activations import cross_attention_bytes
from mrs.plan.forward_pass import KeptAs, Pass, decoding_bytes, norm_bytes, product_bytes
from mrs.plan.storage import Storage

#: Tokens that correct the state of a delta net together.
DELTA_TOKENS = 64


@singledispatch
def part_bytes(part: object, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """Beside its input (T, h), for a mixer or a feed-forward part; one case a kind."""
    raise TypeError(f"no activations are known for {type(part).__name__}")


@part_bytes.register
def _(part: Mlp, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    return _mlp_bytes(part, run, hidden_size, kept, "ffn")


def _mlp_bytes(part: Mlp, run: Pass, hidden_size: int, kept: KeptAs, slot: str) -> int:
    """gate(x), and up(x) beside it; gate and its activation; down of their product.

    Native kernels write over the gate.
    """
    wide = run.size(part.intermediate)
    into = product_bytes(run, hidden_size, part.intermediate, kept(f"{slot}.up"), bias=part.bias)
    out = product_bytes(run, part.intermediate, hidden_size, kept(f"{slot}.down"), bias=part.bias)
    if not part.gated:
        return max(into, 2 * wide, wide + out)
    activated = 2 * wide if run.native else 3 * wide
    return max(wide + into, activated, wide + out)


@part_bytes.register
def _(part: Moe, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """Scores of all experts three times; then the sum and, at worst, one expert for all tokens.

    That takes the pairs of tokens and experts (four lists), its tokens' rows and what it needs,
    while the result of the expert before is still there. The shared expert runs beside the sum.
    """
    router = part.router
    x = run.size(hidden_size)
    wide_x = 4 * run.tokens * hidden_size if run.activation.name != "F32" else 0
    scores = wide_x + 3 * 4 * run.tokens * router.experts
    pairs = 4 * 8 * run.tokens * router.chosen
    expert = _mlp_bytes(part.expert, run, hidden_size, kept, "ffn.experts.0")
    moments = [scores, pairs + 3 * x + max(expert, x)]
    if part.shared is not None:
        shared = _mlp_bytes(part.shared, run, hidden_size, kept, "ffn.shared")
        moments += [x + shared, 3 * x + (wide_x if part.shared_gate else 0)]
    return max(moments)


part_bytes.register(Attention, attention_bytes)
part_bytes.register(LatentAttention, latent_attention_bytes)
part_bytes.register(CrossAttention, cross_attention_bytes)


@part_bytes.register
def _(part: GatedDeltaNet, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """What enters the convolution and what is read are held, in float32.

    Beside them, for one sequence, the convolution's three lists; or its result, the heads of
    queries, keys and values, half of them once more, and a chunk's matrices. Before, all
    projections; last the gated result, its cast and the projection back.
    """
    one = run.of_one_sequence()
    channels, values = part.channels, part.value_heads * part.value_dim
    inputs = 2 * run.size(channels)
    wide_x = 4 * run.tokens * (hidden_size if run.activation.name != "F32" else 0)
    held = run.size(channels) + wide_x + 4 * run.tokens * values
    heads = 4 * one.tokens * (2 * part.value_heads * part.key_dim + values)
    chunk = 4 * 4 * part.value_heads * DELTA_TOKENS * (DELTA_TOKENS + part.key_dim + part.value_dim)
    convolved = 4 * channels * (one.tokens + part.kernel_tokens)
    mixing = max(3 * convolved, convolved + heads * 3 // 2 + chunk)
    gating = run.size(values) + 3 * 4 * run.tokens * values
    back = product_bytes(run, values, hidden_size, kept("mixer.out"))
    return max(inputs, held + mixing, held + gating + run.size(values) + back)


@part_bytes.register
def _(part: ShortConvolution, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """The three vectors, what enters the convolution and its result are held.

    Beside them, for one sequence, the inputs and their sums in float32, cast and turned; or the
    gated result and the projection back.
    """
    one = run.of_one_sequence()
    channels = part.channels
    into = product_bytes(run, hidden_size, 3 * channels, kept("mixer.in"), bias=part.bias)
    held = run.size(5 * channels)
    inputs = 4 * channels * (one.tokens + part.kernel_tokens)
    back = product_bytes(run, channels, hidden_size, kept("mixer.out"), bias=part.bias)
    return max(into, held + 4 * inputs, held + run.size(channels) + back)


def layer_activation_bytes(layer: Layer, hidden_size: int, run: Pass, kept: KeptAs) -> int:
    """Everything that is alive while one layer runs, its input included.

    x and its norm while tokens mix; then also the mixed result, the new x and its norm while the
    feed-forward part runs. The parallel style has one norm and two sums in place of the latter.
    """
    x = run.size(hidden_size)
    mixing = 2 * x + part_bytes(layer.mixer, run, hidden_size, kept)
    before = 4 if layer.style == "parallel" else 5
    transforming = before * x + part_bytes(layer.feed_forward, run, hidden_size, kept)
    return max(mixing, transforming, 4 * x + norm_bytes(run, hidden_size))


def standing_bytes(spec: ModelSpec, run: Pass, batch: int) -> int:
    """What stays between layers: rotary tables, one for each kind of rope, and small things.

    Those are the ids and positions of tokens (8 bytes each) and what sampling has counted of the
    vocabulary (5 bytes each, for every sequence).
    """
    ropes = {layer.mixer.rope for layer in spec.layers}
    one = run.of_one_sequence()
    tables = sum(table_bytes(rope, one) for rope in ropes if rope is not None)
    counted = 5 * spec.vocab_size * batch
    return tables + counted + 8 * 2 * (run.tokens + run.context_tokens)


def head_activation_bytes(spec: ModelSpec, run: Pass, head: Storage, batch: int) -> int:
    """Embedding, logits and sampling: the part that is not a layer's.

    Rows of the embedding and their cast, or what decoding them takes; logits of one row a
    sequence, three times where they are capped; sampling, with the logits and three steps of
    penalties.
    """
    embedded = run.size(spec.hidden_size) * 2
    if head.form == "blocks":
        embedded = max(embedded, decoding_bytes(run, run.tokens * spec.hidden_size))
    product = product_bytes(
        run, spec.hidden_size, spec.vocab_size, head, bias=spec.head_bias, tokens=batch
    )
    logits = batch * spec.vocab_size * 4
    capped = 3 * logits if spec.logit_softcap is not None else 2 * logits
    sampling = 2 * logits + 4 * spec.vocab_size * 4
    return max(embedded, product + logits, capped, sampling)
