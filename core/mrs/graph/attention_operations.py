"""The operations of attention, of each kind."""

from __future__ import annotations

from dataclasses import replace

from mrs.graph.operations import (
    STREAM,
    Activate,
    AddBias,
    Attend,
    AttendBothWays,
    AttendToImages,
    ChooseKeys,
    ChosenKeys,
    Clamp,
    Graph,
    Join,
    Multiply,
    Normalize,
    ProjectSmall,
    Rotate,
    Scale,
    Split,
    WriteCache,
    WriteImage,
)
from mrs.layers.attention.alibi import POSITION_VALUES, query_factors
from mrs.layers.attention.spec import Attention, EncoderAttention, SharedAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    LatentAttention,
)


def attend(graph: Graph, attention: Attention, x: int) -> int:
    """The attention of x (h): a new value (h)."""
    q, k, v, gates = _projections(graph, attention, x)
    norms = _head_norms(graph, attention, q, k)
    if attention.qk_norm_whole and not attention.qk_norm_after_rope:
        graph.add(*norms)
    if attention.clip is not None:
        clipped = (q, k) if v is None else (q, k, v)
        graph.add(*(Clamp(each, -attention.clip, attention.clip) for each in clipped))
    if v is None:
        v = graph.value(attention.value_size)
        graph.add(Split(k, (v,)))
    if attention.value_norm is not None:
        norm = replace(attention.value_norm, kind="rms", bias=False, learned=False)
        graph.add(Normalize(v, v, "", norm, attention.value_dim))
    if not attention.qk_norm_whole and not attention.qk_norm_after_rope:
        graph.add(*norms)
    if attention.rope is not None:
        graph.add(Rotate(q, attention.heads, attention.rope))
        graph.add(Rotate(k, attention.kv_heads, attention.rope))
    if attention.qk_norm_after_rope:
        graph.add(*norms)
    if attention.alibi:
        q, k = with_positions(graph, attention, q, k)
    if attention.query_scale is not None:
        graph.add(Multiply(q, graph.given_value(1, attention.query_scale)))
    attended = graph.value(attention.output_size)
    if isinstance(attention, EncoderAttention):
        graph.add(AttendBothWays(q, k, v, attended, attention))
    else:
        graph.add(WriteCache(k, v, attention.kv_heads), Attend(q, attended, attention))
    if attention.value_scale != 1.0:
        graph.add(Scale(attended, attention.value_scale))
    for gate, activation in gates:
        if graph.widths[gate] < graph.widths[attended]:
            graph.add(Activate(gate, None, activation), Multiply(attended, gate))
        else:
            graph.add(Activate(gate, attended, activation))
            attended = gate
    widths = {"mixer.o": graph.widths[STREAM]}
    (out,) = graph.projected(attended, widths, bias=attention.out_bias)
    return out


def with_positions(graph: Graph, attention: Attention, q: int, k: int) -> tuple[int, int]:
    """New values: queries and keys with positions (`mrs.layers.attention.alibi`)."""
    factors = query_factors(attention.alibi, attention.scale)
    queries = graph.value(attention.heads * attention.key_dim)
    keys = graph.value(attention.kv_heads * attention.key_dim)
    digits = graph.given_value(POSITION_VALUES, "positions")
    graph.add(Join(q, None, queries, attention.heads, factors))
    graph.add(Join(k, digits, keys, attention.kv_heads))
    return queries, keys


def _projections(
    graph: Graph, attention: Attention, x: int
) -> tuple[int, int, int | None, list[tuple[int, str]]]:
    """Queries, keys, values unless they are the keys, and gates with their activations."""
    queries = attention.heads * attention.head_dim
    widths = {"mixer.q": 2 * queries if attention.gated else queries}
    widths["mixer.k"] = attention.key_size
    if not attention.values_are_keys:
        widths["mixer.v"] = attention.value_size
    biased = [slot for slot in widths if attention.has_bias(slot)]
    if attention.output_gate:
        widths["mixer.gate"] = attention.gate_size
    projected = dict(zip(widths, graph.projected(x, widths), strict=True))
    graph.add(*(AddBias(projected[slot], f"{slot}.bias") for slot in biased))
    gates: list[tuple[int, str]] = []
    if attention.output_gate:
        gates.append((projected["mixer.gate"], attention.output_gate))
    q = projected["mixer.q"]
    if attention.gated:
        dim = attention.head_dim
        q, gate = graph.split(q, (dim, dim), attention.heads)
        gates.append((gate, "sigmoid"))
    return q, projected["mixer.k"], projected.get("mixer.v"), gates


def _head_norms(graph: Graph, attention: Attention, q: int, k: int) -> list[Normalize]:
    norm, size = attention.qk_norm, 0 if attention.qk_norm_whole else attention.head_dim
    if norm is None:
        return []
    return [
        replace(graph.norm(each, each, slot, norm, size), is_shared=attention.qk_norm_whole)
        for each, slot in ((q, "mixer.q_norm"), (k, "mixer.k_norm"))
    ]


def attend_latent(graph: Graph, mla: LatentAttention, x: int) -> int:
    """Latent attention of x (h), its projections of keys and values absorbed: a new value (h)."""
    heads, latent, positioned = mla.heads, mla.kv_lora_rank, mla.rope.dim
    vector = _query_vector(graph, mla, x)
    queries = _latent_queries(graph, mla, vector)
    (compressed,) = graph.projected(x, {"mixer.kv_a": latent + positioned}, bias=mla.bias)
    values, rotated = graph.split(compressed, (latent, positioned))
    graph.add(graph.norm(values, values, "mixer.kv_a_norm", mla.norm))
    graph.add(Rotate(rotated, 1, mla.rope))
    keys = graph.joined(values, rotated)
    choice = None
    if isinstance(mla, IndexedAttention):
        choice = _choice(graph, mla, x, vector)
    elif isinstance(mla, BorrowedChoiceAttention):
        choice = graph.given_value(mla.top_k, ChosenKeys(mla.top_k))
    attended, out = graph.value(heads * latent), graph.value(heads * mla.v_head_dim)
    graph.add(WriteCache(keys, None, 1), Attend(queries, attended, mla.absorbed, choice))
    graph.add(ProjectSmall(attended, out, "mixer.v_b.weight", heads))
    (out,) = graph.projected(out, {"mixer.o": graph.widths[STREAM]}, bias=mla.bias)
    return out


def _choice(graph: Graph, mla: IndexedAttention, x: int, vector: int) -> int:
    """The keys that the indexer chooses; its own keys are written to their cache."""
    index, rope = mla.indexer, replace(mla.rope, interleaved=mla.indexer.interleaved)
    (keys,) = graph.projected(x, {"mixer.index_k": index.head_dim})
    graph.add(graph.norm(keys, keys, "mixer.index_norm", index.norm), Rotate(keys, 1, rope))
    (queries,) = graph.projected(vector, {"mixer.index_q": index.heads * index.head_dim})
    graph.add(Rotate(queries, index.heads, rope))
    weights = graph.small_product(x, "mixer.index_weights", index.heads)
    graph.add(Scale(weights, (index.heads * index.head_dim) ** -0.5))
    choice = graph.given_value(index.top_k, ChosenKeys(index.top_k))
    graph.add(
        WriteCache(keys, None, 1, is_index=True),
        ChooseKeys(queries, weights, choice, index.heads),
    )
    return choice


def _query_vector(graph: Graph, mla: LatentAttention, x: int) -> int:
    """What queries are made of: a latent vector of x (h), or x itself."""
    if mla.q_lora_rank is None:
        return x
    (vector,) = graph.projected(x, {"mixer.q_a": mla.q_lora_rank}, bias=mla.bias)
    return graph.normed(vector, "mixer.q_a_norm", mla.norm)


def _latent_queries(graph: Graph, mla: LatentAttention, vector: int) -> int:
    """The queries of the cached vectors."""
    heads, dims = mla.heads, (mla.qk_nope_head_dim, mla.rope.dim)
    slot = "mixer.q" if mla.q_lora_rank is None else "mixer.q_b"
    (q,) = graph.projected(vector, {slot: heads * sum(dims)})
    plain, rotated = graph.split(q, dims, heads)
    absorbed = graph.value(heads * mla.kv_lora_rank)
    graph.add(ProjectSmall(plain, absorbed, "mixer.k_b.weight", heads, is_transposed=True))
    graph.add(Rotate(rotated, heads, mla.rope))
    queries = graph.joined(absorbed, rotated, heads)
    if mla.query_scale is not None:
        graph.add(Multiply(queries, graph.given_value(1, mla.query_scale)))
    return queries


def attend_shared(graph: Graph, shared: SharedAttention, x: int) -> int:
    """The attention of x (h) to what another layer has cached: a new value (h)."""
    attention, hidden = shared.attention, graph.widths[STREAM]
    size = attention.heads * attention.head_dim
    (q,) = graph.projected(x, {"mixer.q": size}, bias=attention.qkv_bias)
    if attention.qk_norm is not None:
        graph.add(graph.norm(q, q, "mixer.q_norm", attention.qk_norm, attention.head_dim))
    if attention.rope is not None:
        graph.add(Rotate(q, attention.heads, attention.rope))
    attended = graph.value(attention.output_size)
    graph.add(Attend(q, attended, attention))
    (out,) = graph.projected(attended, {"mixer.o": hidden}, bias=attention.out_bias)
    return out


def attend_to_images(graph: Graph, cross: CrossAttention, x: int) -> int:
    """The attention of x (h) to the images of its sequence: a new value (h)."""
    size = cross.heads * cross.head_dim
    if cross.input_norm is not None:
        x = graph.normed(x, "cross.input_norm", cross.input_norm)
    (q,) = graph.projected(x, {"cross.q": size}, bias=cross.bias)
    attended = graph.value(size)
    if cross.norm is not None:
        graph.add(graph.norm(q, q, "cross.q_norm", cross.norm, cross.head_dim))
    graph.add(AttendToImages(q, attended, cross))
    (out,) = graph.projected(attended, {"cross.o": graph.widths[STREAM]}, bias=cross.bias)
    return out


def image_graph(cross: CrossAttention, hidden_size: int) -> Graph:
    """The keys and values of the features (h) of an image, which are the stream, to a cache."""
    graph, size = Graph(hidden_size), cross.kv_heads * cross.head_dim
    (k,) = graph.projected(STREAM, {"cross.k": size})
    if cross.norm is not None:
        graph.add(graph.norm(k, k, "cross.k_norm", cross.norm, cross.head_dim))
    (v,) = graph.projected(STREAM, {"cross.v": size}, bias=cross.bias)
    graph.add(WriteImage(k, v, cross.kv_heads))
    return graph
