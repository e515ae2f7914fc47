"""Bytes of activations that are alive at once in our engine's forward pass.

Each function lists the moments of its part at which most is alive, as the code of `mrs.model` and
`mrs.kernels` runs them, and takes the largest. Letters in the derivations: T new tokens, S keys
that they see, h hidden size, H query heads and KV key heads of D numbers, G = H / KV, I the
feed-forward's width; a, c and w are the bytes of one number of activations (float32 on a CPU,
the cache's type elsewhere), of the KV cache, and of a dense weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import singledispatch

from mrs.families.spec import (
    Attention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mlp,
    ModelSpec,
    Moe,
    Rope,
    ShortConvolution,
)
from mrs.formats import Format
from mrs.plan.processor import Bf16Units
from mrs.plan.storage import Storage
from mrs.units import KIB, MIB

#: What torch's CPU kernels take besides: matrix products of half types, at most.
PRODUCT_SCRATCH_BYTES = 400 * KIB
#: Tokens from which packed weights are decoded for bf16 units, and the size of the tiles: matrix
#: units take every format, vector units plain bf16 alone.
MATRIX_UNIT_TOKENS, VECTOR_UNIT_TOKENS = 32, 64
TILE_BYTES = 4 * MIB
#: Heads that native attention takes are whole vectors; it scores so many queries at once.
NATIVE_LANES = 16
NATIVE_SCORES = 4
#: Keys that the CPU's fused attention looks at in one step, and float32 sums it keeps beside.
ATTENTION_KEYS_PER_STEP = 512
#: Scores of latent attention that are in memory at once.
LATENT_SCORES = 1 << 24

#: How the weight of a slot such as `mixer.q` is kept.
KeptAs = Callable[[str], Storage]


@dataclass(frozen=True)
class Pass:
    """One forward pass on one device.

    `tokens` rows run at once, at most `sequence_tokens` of them of one sequence, which then has
    `context_tokens` in all. `threads` work on a CPU that has the `bf16` units and, with
    `native`, our kernels; 0 means an accelerator.
    """

    tokens: int
    sequence_tokens: int
    context_tokens: int
    activation: Format
    cache: Format
    threads: int = 0
    bf16: Bf16Units = "none"
    native: bool = False

    def size(self, *dims: int) -> int:
        """Bytes of the activations of all rows."""
        return self.tokens * _numbers(dims) * self.activation.block_bytes


def _numbers(dims: Iterable[int]) -> int:
    product = 1
    for dim in dims:
        product *= dim
    return product


def product_bytes(
    run: Pass, columns: int, rows: int, kept: Storage, *, bias: bool = False, tokens: int = 0
) -> int:
    """Beside its input: x (T, columns) @ W.T, result (T, rows) included.

    A dense weight of another type than the activations casts x, multiplies, and casts the result
    back: max(w T columns + w T rows, (w + a) T rows). A bias is added into a new result.
    """
    tokens = tokens or run.tokens
    result = tokens * rows * run.activation.block_bytes
    with_bias = 2 * result if bias else result
    if kept.packed:
        scratch = _packed_scratch_bytes(run, kept.format, tokens, columns, rows)
        return max(result + scratch, with_bias)
    if kept.format == run.activation:
        return with_bias
    cast = tokens * kept.format.block_bytes
    scratch = PRODUCT_SCRATCH_BYTES if run.threads else 0
    return max(cast * (columns + rows) + scratch, cast * rows + result, with_bias)


def _packed_scratch_bytes(run: Pass, weight: Format, tokens: int, columns: int, rows: int) -> int:
    """A packed product copies x to panels: float32 for a plain weight, else quantized to one byte
    a number and 12 bytes for 32.

    For bf16 units it casts x of many tokens to bf16 instead, and decodes tile after tile of the
    weight to bf16, each of which is multiplied while the one before is still there.
    """
    by_matrix = run.bf16 == "matrix" and tokens >= MATRIX_UNIT_TOKENS
    by_vector = run.bf16 == "vector" and tokens >= VECTOR_UNIT_TOKENS and weight.name == "BF16"
    if not by_matrix and not by_vector:
        return tokens * columns * 11 // 8 if weight.is_quantized else 4 * tokens * columns
    tile_rows = min(rows, max(TILE_BYTES // (2 * columns), 1))
    tiles = 2 * tile_rows * 2 * columns
    return 2 * tokens * (columns + tile_rows) + tiles + PRODUCT_SCRATCH_BYTES


def norm_bytes(run: Pass, size: int) -> int:
    """Beside its input: float32 of x where it has another type, two products, the result.

    The native kernels need nothing but the result.
    """
    numbers = run.tokens * size
    if run.native:
        return 4 * numbers
    if run.activation.name == "F32":
        return 2 * 4 * numbers
    return (3 * 4 + run.activation.block_bytes) * numbers


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
    then its result and that times the weights. The shared expert runs beside the sum.
    """
    router = part.router
    x = run.size(hidden_size)
    wide_x = 4 * run.tokens * hidden_size if run.activation.name != "F32" else 0
    scores = wide_x + 3 * 4 * run.tokens * router.experts
    pairs = 4 * 8 * run.tokens * router.chosen
    expert = _mlp_bytes(part.expert, run, hidden_size, kept, "ffn.experts.0")
    moments = [scores, pairs + 2 * x + max(expert, 2 * x)]
    if part.shared is not None:
        shared = _mlp_bytes(part.shared, run, hidden_size, kept, "ffn.shared")
        moments += [x + shared, 3 * x + (wide_x if part.shared_gate else 0)]
    return max(moments)


@part_bytes.register
def _(part: Attention, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """Queries, keys, values and the mixed result (2 Q + 2 K) are held throughout.

    Beside them: the projections; norms of q and k; rotation, a R for the turned numbers twice;
    then the rotated q and k stay while the fused or the explicit attention runs; last the
    projection back, when the rotated ones are gone.
    """
    query_size, key_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
    queries, keys = run.size(query_size), run.size(key_size)
    held = 2 * queries + 2 * keys
    if part.gated:
        held += queries

    def product(slot: str, columns: int, rows: int, bias: bool) -> int:
        return product_bytes(run, columns, rows, kept(slot), bias=bias)

    moments = [
        queries + 2 * keys + product("mixer.v", hidden_size, key_size, part.qkv_bias),
        product("mixer.q", hidden_size, query_size, part.qkv_bias),
        held + product("mixer.o", query_size, hidden_size, part.out_bias),
    ]
    if part.qk_norm is not None:
        moments.append(queries + 2 * keys + norm_bytes(run, query_size))
        moments.append(2 * queries + 2 * keys + norm_bytes(run, key_size))
    one = _of_one_sequence(run)
    turned = held
    if part.rope is not None:
        moments.append(held + _rotation_bytes(one, part.heads, part.head_dim, part.rope))
        moments.append(held + _table_growth_bytes(one, part.rope))
        turned += one.size(query_size) + one.size(key_size)
    moments.append(turned + _attend_bytes(part, one))
    moments.append(turned + _window_move_bytes(part, one))
    return max(moments)


@part_bytes.register
def _(part: LatentAttention, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """Queries, those through the keys' map, the latent vector twice and the mix are held.

    Beside them, for one sequence, the rotated queries and their copy in the cache's type, then
    the scores of some heads: with their mask and softmax three lists in float32, and float32 of
    the keys. Last what goes through the values' map, and the projection back.
    """
    wide = part.latent_dim + part.rope.dim
    query_size = part.heads * (part.key_dim + part.rope.dim)
    latents = run.size(part.heads * part.latent_dim)
    held = run.size(query_size + wide + part.latent_dim) + 2 * latents
    one = _of_one_sequence(run)
    turned = one.size(part.heads * wide) + one.tokens * part.heads * wide * run.cache.block_bytes
    scores = min(part.heads * one.tokens * one.context_tokens, LATENT_SCORES)
    scores = max(scores, one.tokens * one.context_tokens)
    keys = 2 * 4 * one.context_tokens * wide
    attending = 3 * 4 * scores + keys + one.size(part.heads * part.latent_dim)
    values = 2 * run.size(part.heads * part.value_dim)
    back = product_bytes(
        run, part.heads * part.value_dim, hidden_size, kept("mixer.o"), bias=part.bias
    )
    return held + max(turned + attending, values + back)


@part_bytes.register
def _(part: GatedDeltaNet, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """What enters the convolution, what is read and its gate are held, in float32.

    Beside them, for one sequence, the convolution's four lists and the heads of queries, keys and
    values, then a chunk's matrices. Before, all projections; last the gated result, its cast and
    the projection back.
    """
    one = _of_one_sequence(run)
    channels, values = part.channels, part.value_heads * part.value_dim
    inputs = 2 * run.size(channels)
    wide_x = 4 * run.tokens * (hidden_size + 4 * part.value_heads)
    held = run.size(channels) + wide_x + 4 * run.tokens * values
    heads = 4 * one.tokens * (2 * part.value_heads * part.key_dim + values)
    chunk = 8 * 4 * part.value_heads * 64 * (64 + part.key_dim + part.value_dim)
    mixing = 4 * 4 * channels * (one.tokens + part.kernel_tokens) + 3 * heads + chunk
    gating = run.size(values) + 3 * 4 * run.tokens * values
    back = product_bytes(run, values, hidden_size, kept("mixer.out"))
    return max(inputs, held + mixing, held + gating + run.size(values) + back)


@part_bytes.register
def _(part: ShortConvolution, run: Pass, hidden_size: int, kept: KeptAs) -> int:
    """The three vectors, what enters the convolution and its result are held.

    Beside them, for one sequence, the inputs and their sums in float32, cast and turned; or the
    gated result and the projection back.
    """
    one = _of_one_sequence(run)
    channels = part.channels
    into = product_bytes(run, hidden_size, 3 * channels, kept("mixer.in"), bias=part.bias)
    held = run.size(5 * channels)
    inputs = 4 * channels * (one.tokens + part.kernel_tokens)
    back = product_bytes(run, channels, hidden_size, kept("mixer.out"), bias=part.bias)
    return max(into, held + 4 * inputs, held + run.size(channels) + back)


def _of_one_sequence(run: Pass) -> Pass:
    """Sequences of a batch attend one after another."""
    return replace(run, tokens=run.sequence_tokens)


def _rotation_bytes(run: Pass, heads: int, head_dim: int, rope: Rope) -> int:
    """Both halves of the turned pairs and their joint, then the numbers that pass through.

    Half types turn in float32: a copy before, a cast behind. Native kernels need the result alone.
    """
    if run.native:
        return run.size(heads * head_dim)
    pairs = 4 * run.tokens * heads * rope.dim
    if run.activation.name != "F32":
        pairs = pairs * 3 // 2
    rest = run.size(heads * head_dim) if rope.dim < head_dim else 0
    return max(2 * pairs, pairs + rest)


def table_tokens(context_tokens: int, chunk_tokens: int) -> int:
    """Rows of a rotary table, which doubles until it holds the context."""
    rows = max(256, min(chunk_tokens, context_tokens))
    while rows < context_tokens:
        rows *= 2
    return rows


def table_bytes(rope: Rope, run: Pass) -> int:
    """cos and sin in float32 of a rotary table."""
    fixed = rope.scaling is None or not rope.scaling.depends_on_length
    rows = table_tokens(run.context_tokens, run.tokens) if fixed else run.sequence_tokens
    return rows * rope.dim // 2 * 4 * 2


def _table_growth_bytes(run: Pass, rope: Rope) -> int:
    """Angles, cosines, their product, new and half-sized old tables, less the table that stays."""
    return table_bytes(rope, run) * 10 // 8


def _attend_bytes(part: Attention, run: Pass) -> int:
    """Beside rotated queries and the cache: the cast queries, then one of two ways.

    Native kernels take any queries and keep four rows of scores a thread beside their result.
    """
    if run.native and part.head_dim % NATIVE_LANES == 0:
        scores = run.threads * NATIVE_SCORES * 4 * run.context_tokens
        return run.size(part.heads * part.head_dim) + scores
    query = run.tokens * part.heads * part.head_dim * run.cache.block_bytes
    cast = 0 if run.cache == run.activation else query
    seen = _seen_keys(part, run)
    if part.softcap is None and not part.sinks:
        return cast + _fused_bytes(part, run, query, seen)
    return cast + _explicit_bytes(part, run, query, seen)


def _seen_keys(part: Attention, run: Pass) -> int:
    """A cache with a window returns the window before each token of the chunk."""
    if part.window is None or part.window + run.tokens >= run.context_tokens:
        return run.context_tokens
    return part.window - 1 + run.tokens


def _fused_bytes(part: Attention, run: Pass, query: int, seen: int) -> int:
    """torch's fused attention over queries folded by group.

    One new token sees every key: no mask, and queries are only viewed. Otherwise the mask
    (G T, S) stands as booleans and is made numbers of the cache's type. A window makes the
    boolean mask (T, S) of three parts before it is folded. The result is copied into rows, while
    the kernel's own buffers are gone.
    """
    group = part.heads // part.kv_heads
    if run.tokens == 1:
        return 2 * query + _kernel_bytes(part, run)
    cells = group * run.tokens * seen
    mask = run.tokens * seen * (3 if part.window is not None else 1)
    folded = query if group > 1 else 0
    kernel = cells + cells * run.cache.block_bytes + query + _kernel_bytes(part, run)
    return max(mask + (cells if group > 1 else 0), folded + max(kernel, cells + 2 * query))


def _kernel_bytes(part: Attention, run: Pass) -> int:
    """The fused kernel's buffers: logarithms of sums, and on a CPU scores and sums a thread.

    A thread takes 256, 64 or 32 queries a step, and repeats half-type scores in that type.
    """
    rows = part.heads // part.kv_heads * run.tokens
    sums = part.heads * run.tokens * 4
    step = 256 if rows >= 768 else 64 if rows >= 192 else 32
    scores = step * ATTENTION_KEYS_PER_STEP * 4
    if run.cache.name != "F32":
        scores = scores * 3 // 2
    return sums + run.threads * (scores + step * part.head_dim * 4 + 2 * step * 4)


def _explicit_bytes(part: Attention, run: Pass, query: int, seen: int) -> int:
    """Scores of one key head at a time, in float32.

    Four of them are alive from the second head on: those and the probabilities of the head
    before, and two that are being worked on; with one key head three. Beside them the mask,
    while it is made (with a window of three parts) or negated, and the results so far.
    """
    scores = part.heads // part.kv_heads * run.tokens * seen * 4
    count = 4 if part.kv_heads > 1 else 3
    mask = run.tokens * seen * 2 if run.tokens > 1 else 0
    return count * scores + mask + 2 * query


def _window_move_bytes(part: Attention, run: Pass) -> int:
    """When a window moves on, its keys and then its values go to a buffer of the same size."""
    if part.window is None or part.window + run.tokens >= run.context_tokens:
        return 0
    cells = part.window + run.tokens
    return cells * part.kv_heads * part.head_dim * run.cache.block_bytes


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
    one = _of_one_sequence(run)
    tables = sum(table_bytes(rope, one) for rope in ropes if rope is not None)
    counted = 5 * spec.vocab_size * batch
    return tables + counted + 8 * 2 * (run.tokens + run.context_tokens)


def head_activation_bytes(spec: ModelSpec, run: Pass, head: Storage, batch: int) -> int:
    """Embedding, logits and sampling: the part that is not a layer's.

    Rows of the embedding and their cast; logits of one row a sequence, three times where they
    are capped; sampling, with the logits and three steps of penalties.
    """
    embedded = run.size(spec.hidden_size) * 2
    product = product_bytes(
        run, spec.hidden_size, spec.vocab_size, head, bias=spec.head_bias, tokens=batch
    )
    logits = batch * spec.vocab_size * 4
    capped = 3 * logits if spec.logit_softcap is not None else 2 * logits
    sampling = 2 * logits + 4 * spec.vocab_size * 4
    return max(embedded, product + logits, capped, sampling)
