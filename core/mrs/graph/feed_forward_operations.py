"""The operations of feed-forward modules, and of small maps beside the modules of a layer."""

from __future__ import annotations

from mrs.graph.operations import (
    STREAM,
    Activate,
    Add,
    CutOff,
    Graph,
    Mix,
    Route,
    Scale,
    Weigh,
    Xielu,
)
from mrs.kernels.workspace.experts import choice_floats, order_floats, rank_floats
from mrs.layers.laurel.spec import Laurel
from mrs.layers.layer_inputs.spec import GatedInput
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router


def transform(graph: Graph, mlp: Mlp, x: int, name: str = "ffn") -> int:
    """The MLP of x (h), whose slots begin with `name`: a new value (h)."""
    slots = (f"{name}.gate", f"{name}.up") if mlp.gated else (f"{name}.up",)
    gate, *up = graph.projected(x, dict.fromkeys(slots, mlp.intermediate), bias=mlp.bias)
    if mlp.cutoff is not None and mlp.gated:
        graph.add(CutOff(gate, mlp.cutoff))
    if mlp.gate_scale != 1.0 and mlp.gated:
        graph.add(Scale(gate, mlp.gate_scale))
    if mlp.activation == "xielu":
        graph.add(Xielu(gate, name, mlp.xielu_values))
    else:
        graph.add(Activate(gate, up[0] if up else None, mlp.activation, mlp.clamp))
    down = {f"{name}.down": graph.widths[STREAM]}
    (out,) = graph.projected(gate, down, bias=mlp.bias or mlp.down_bias)
    if mlp.out_scale != 1.0:
        graph.add(Scale(out, mlp.out_scale))
    return out


def transform_and_mix(graph: Graph, both: MlpAndMoe, x: int) -> int:
    """An MLP and a mixture of x (h), each between norms of its own: a new value (h)."""
    norm = both.norm
    dense = transform(graph, both.mlp, graph.normed(x, "ffn.norm", norm))
    mixed = mix(graph, both.moe, graph.normed(x, "ffn.norm_in", norm), routed_by=x)
    graph.sum_ranks(dense, mixed)
    graph.add(graph.norm(dense, dense, "ffn.norm_1", norm))
    graph.add(graph.norm(mixed, mixed, "ffn.norm_2", norm), Add(dense, mixed))
    return dense


def mix(graph: Graph, moe: Moe, x: int, routed_by: int | None = None) -> int:
    """The mixture of experts of x (h): a new value (h). They are chosen by x or another value."""
    hidden, bias = graph.widths[STREAM], moe.latent_bias
    choice, inner = _route(graph, moe.router, x if routed_by is None else routed_by), x
    if moe.latent is not None:
        (inner,) = graph.projected(x, {"ffn.latent_in": moe.latent}, bias=bias)
    out, rows = graph.value(graph.widths[inner]), graph.value(graph.widths[inner])
    between = graph.value(moe.expert.intermediate * (2 if moe.expert.gated else 1))
    order = graph.value(order_floats(moe.router.experts, moe.router.top_k))
    graph.add(Mix(inner, choice, out, rows, between, order, moe))
    if moe.latent is not None:
        (out,) = graph.projected(out, {"ffn.latent_out": hidden}, bias=bias)
    if moe.shared is not None:
        shared = transform(graph, moe.shared, x, "ffn.shared")
        if moe.shared_gate:
            graph.add(Weigh(shared, x, graph.value(1), "ffn.shared_gate"))
        graph.add(Add(out, shared))
    return out


def _route(graph: Graph, router: Router, x: int) -> int:
    """Which experts compute x (h): a new value."""
    ranks = rank_floats(router.experts, router.n_group, router.topk_group)
    choice = graph.value(choice_floats(router.top_k))
    room = graph.value(router.experts), graph.value(ranks)
    normed = graph.value(graph.widths[x]) if router.input_norm is not None else None
    graph.add(Route(x, choice, *room, normed, router))
    return choice


def add_low_rank(graph: Graph, laurel: Laurel, x: int) -> int:
    """x (h), and what a low-rank map makes of it: a new value (h)."""
    (left,) = graph.projected(x, {"laurel.left": laurel.rank})
    (right,) = graph.projected(left, {"laurel.right": graph.widths[STREAM]})
    graph.add(graph.norm(right, right, "laurel.norm", laurel.norm), Add(right, x))
    return right


def own_input(graph: Graph, gated: GatedInput, x: int = STREAM) -> int:
    """What the layer's own input adds to the stream x (h): a new value (h)."""
    (gate,) = graph.projected(x, {"input.gate": gated.size})
    layer_input = graph.given_value(gated.size, "layer input")
    graph.add(Activate(gate, layer_input, gated.activation))
    (added,) = graph.projected(gate, {"input.projection": graph.widths[x]})
    graph.add(graph.norm(added, added, "input.norm", gated.norm))
    return added
