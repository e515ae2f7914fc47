"""The operations of mixers with recurrent states.

What is convolved, updates a state or is read of one is in float32, as states are.
"""

from __future__ import annotations

from mrs.graph.operations import (
    STREAM,
    Activate,
    AddBias,
    Clamp,
    Convolve,
    DeltaRule,
    Graph,
    Multiply,
    Normalize,
    Scale,
    ScaleEach,
    ScaleToLength,
    StateSpace,
)
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.mamba.spec import Mamba
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.short_convolution.spec import ShortConvolution


def delta_net(graph: Graph, mixer: GatedDeltaNet, x: int) -> int:
    """What a gated delta net makes of x (h): a new value (h)."""
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    widths = {"mixer.q": keys, "mixer.k": keys, "mixer.v": values, "mixer.z": values}
    q, k, v, gate = graph.projected(x, widths, wide=widths)
    strengths = _strengths(graph, x, mixer.value_heads)
    if mixer.beta_scale != 1.0:
        graph.add(Scale(strengths, mixer.beta_scale))
    decays = graph.small_product(x, "mixer.step", mixer.value_heads)
    graph.add(*_to_decays(decays, 1))
    graph.add(Convolve((q, k, v), "mixer.conv", mixer.kernel_tokens, silu=True))
    graph.add(*_to_lengths(q, k, mixer.key_dim))
    mixed = graph.value(values, wide=True)
    rule = DeltaRule(
        *(q, k, v, decays, strengths, mixed), mixer.value_heads, mixer.key_heads, mixer.tiled
    )
    graph.add(rule, Normalize(mixed, mixed, "mixer.head_norm", mixer.norm, mixer.value_dim))
    graph.add(Activate(gate, mixed, "silu"))
    return _out(graph, gate)


def kimi_delta_attention(graph: Graph, mixer: KimiDeltaAttention, x: int) -> int:
    """What Kimi Delta Attention makes of x (h): a new value (h)."""
    size, inner = mixer.values, mixer.head_dim
    slots = {"mixer.q": size, "mixer.k": size, "mixer.v": size, "mixer.gate_in": inner}
    q, k, v, into_gate = graph.projected(x, slots, wide=("mixer.q", "mixer.k", "mixer.v"))
    (gate,) = graph.projected(into_gate, {"mixer.gate_out": size}, wide=("mixer.gate_out",))
    strengths = _strengths(graph, x, mixer.heads)
    into_decays = graph.small_product(x, "mixer.decay_in", inner)
    decays = graph.small_product(into_decays, "mixer.decay_out", size)
    graph.add(*_to_decays(decays, mixer.head_dim))
    for index, (part, name) in enumerate(((q, "q"), (k, "k"), (v, "v"))):
        slot, first = f"mixer.conv_{name}", index * size
        graph.add(Convolve((part,), slot, mixer.kernel_tokens, 0, first, silu=True))
    graph.add(*_to_lengths(q, k, mixer.head_dim))
    mixed = graph.value(size, wide=True)
    rule = DeltaRule(q, k, v, decays, strengths, mixed, mixer.heads, mixer.heads)
    graph.add(rule, Normalize(mixed, mixed, "mixer.head_norm", mixer.norm, mixer.head_dim))
    graph.add(Activate(gate, mixed, "sigmoid"))
    return _out(graph, gate)


def mamba(graph: Graph, mixer: Mamba, x: int) -> int:
    """What the first Mamba makes of x (h): a new value (h)."""
    channels, taps = mixer.channels, mixer.kernel_tokens
    (projected,) = graph.projected(x, {"mixer.in": 2 * channels}, bias=mixer.bias)
    values, gate = graph.split(projected, (channels, channels), wide=True)
    graph.add(Convolve((values,), "mixer.conv", taps, bias=mixer.convolution_bias, silu=True))
    (selected,) = graph.projected(values, {"mixer.x": sum(mixer.selected)})
    graph.sum_ranks(selected)
    parts = graph.split(selected, mixer.selected)
    for part, name in zip(parts, ("step", "b", "c"), strict=True):
        if mixer.norm is not None:
            graph.add(graph.norm(part, part, f"mixer.{name}_norm", mixer.norm))
    into_times, into, out_of = parts
    (times,) = graph.projected(into_times, {"mixer.step": channels}, wide=("mixer.step",))
    graph.add(AddBias(times, "mixer.step_bias"), Activate(times, None, "softplus"))
    mixed = graph.value(channels, wide=True)
    graph.add(StateSpace(values, into, out_of, times, mixed, channels, 1, mixer.state_dim))
    graph.add(Activate(gate, mixed, "silu"))
    return _out(graph, gate, bias=mixer.bias)


def mamba2(graph: Graph, mixer: Mamba2, x: int) -> int:
    """What Mamba 2 makes of x (h): a new value (h)."""
    (projected,) = graph.projected(x, {"mixer.in": mixer.projected}, bias=mixer.bias)
    parts = graph.split(projected, mixer.parts, wide=True)
    graph.add(*map(Scale, parts, mixer.multipliers))
    gate, values, into, out_of, times = parts
    graph.add(AddBias(times, "mixer.step_bias"), Activate(times, None, "softplus"))
    graph.add(Clamp(times, mixer.least_step, mixer.most_step))
    convolved, has_bias = (values, into, out_of), mixer.convolution_bias
    graph.add(Convolve(convolved, "mixer.conv", mixer.kernel_tokens, bias=has_bias, silu=True))
    mixed = graph.value(mixer.values, wide=True)
    graph.add(StateSpace(values, into, out_of, times, mixed, mixer.heads, mixer.groups))
    norms: list[Normalize] = []
    if mixer.norm is not None:
        size = mixer.values // mixer.groups
        of = mixed if mixer.norm_before_gate else gate
        norms = [Normalize(of, of, "mixer.head_norm", mixer.norm, size, mixer.shares_group)]
    gating = Activate(gate, mixed, "silu")
    graph.add(*([*norms, gating] if mixer.norm_before_gate else [gating, *norms]))
    return _out(graph, gate, bias=mixer.out_bias)


def short_convolution(graph: Graph, mixer: ShortConvolution, x: int) -> int:
    """What a short convolution makes of x (h): a new value (h)."""
    size, bias = mixer.channels, mixer.bias
    (projected,) = graph.projected(x, {"mixer.in": 3 * size}, bias=bias)
    gate_in, gate_out, inner = graph.split(projected, (size, size, size), wide=True)
    graph.add(Multiply(inner, gate_in))
    graph.add(Convolve((inner,), "mixer.conv", mixer.kernel_tokens, bias=bias))
    graph.add(Multiply(inner, gate_out))
    return _out(graph, inner, bias=bias)


def _out(graph: Graph, x: int, *, bias: bool = False) -> int:
    (out,) = graph.projected(x, {"mixer.out": graph.widths[STREAM]}, bias=bias)
    return out


def _strengths(graph: Graph, x: int, heads: int) -> int:
    """A new value: how much each head of x (h) updates its state."""
    strengths = graph.small_product(x, "mixer.beta", heads)
    graph.add(Activate(strengths, None, "sigmoid"))
    return strengths


def _to_decays(steps: int, size: int) -> tuple[AddBias, Activate, ScaleEach]:
    """Turn steps into logarithms of decays; each head has `size` of them."""
    return (
        AddBias(steps, "mixer.step_bias"),
        Activate(steps, None, "softplus"),
        ScaleEach(steps, "mixer.decay", size),
    )


def _to_lengths(q: int, k: int, dim: int) -> tuple[ScaleToLength, ScaleToLength]:
    """Give queries and keys of `dim` values the lengths of a delta rule."""
    return ScaleToLength(q, dim, dim**-0.5), ScaleToLength(k, dim, 1.0)
