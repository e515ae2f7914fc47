"""List every part of a model that has weights, with their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Literal

from mrs.architecture.binding import Role
from mrs.architecture.layers import (
    Attention,
    CrossAttention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mlp,
    Moe,
    Norm,
    ShortConvolution,
)
from mrs.architecture.model_spec import ModelSpec

#: Weights that containers may store in ways of their own: those of norms, of norms that are an
#: offset from one in every family, and rates of decay.
Kind = Literal["plain", "norm", "offset_norm", "decay"]


@dataclass(frozen=True)
class Slot:
    """One part of a layer or model: its name, the shape of its weight, whether it has a bias.

    With `experts` there are that many of it, and `{expert}` in its name stands for the number.
    Files that keep it in one tensor with other parts may let those take turns, in `interleave_groups` equal
    stretches of rows each.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "matrix"
    bias: bool = False
    kind: Kind = "plain"
    suffix: str = ".weight"
    experts: int = 0
    interleave_groups: int = 1

    @property
    def rows(self) -> int:
        """Rows of the weight, all its dimensions but the last one together."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]


def _norm(name: str, size: int, norm: Norm) -> Slot:
    return Slot(name, (size,), "vector", norm.bias, kind="norm")


@singledispatch
def part_slots(part: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a mixer or a feed-forward part; one case a kind."""
    raise TypeError(f"no slots are known for {type(part).__name__}")


@part_slots.register
def _(part: Attention, hidden_size: int) -> Iterator[Slot]:
    query_size, key_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
    query_rows = 2 * query_size if part.gated else query_size
    yield Slot("mixer.q", (query_rows, hidden_size), bias=part.qkv_bias)
    yield Slot("mixer.k", (key_size, hidden_size), bias=part.qkv_bias)
    yield Slot("mixer.v", (key_size, hidden_size), bias=part.qkv_bias)
    yield Slot("mixer.o", (hidden_size, query_size), bias=part.out_bias)
    if part.qk_norm is not None:
        whole = part.qk_norm_whole
        yield _norm("mixer.q_norm", query_size if whole else part.head_dim, part.qk_norm)
        yield _norm("mixer.k_norm", key_size if whole else part.head_dim, part.qk_norm)
    if part.sinks:
        yield Slot("mixer.sinks", (part.heads,), "vector", suffix="")


@part_slots.register
def _(part: LatentAttention, hidden_size: int) -> Iterator[Slot]:
    heads, latent = part.heads, part.kv_lora_rank
    query_rows = heads * (part.qk_nope_head_dim + part.rope.dim)
    if part.q_lora_rank is None:
        yield Slot("mixer.q", (query_rows, hidden_size))
    else:
        yield Slot("mixer.q_a", (part.q_lora_rank, hidden_size), bias=part.bias)
        yield _norm("mixer.q_a_norm", part.q_lora_rank, part.norm)
        yield Slot("mixer.q_b", (query_rows, part.q_lora_rank))
    yield Slot("mixer.kv_a", (latent + part.rope.dim, hidden_size), bias=part.bias)
    yield _norm("mixer.kv_a_norm", latent, part.norm)
    yield Slot(
        "mixer.k_b", (heads, part.qk_nope_head_dim, latent), "dense", interleave_groups=heads
    )
    yield Slot("mixer.v_b", (heads, part.v_head_dim, latent), "dense", interleave_groups=heads)
    yield Slot("mixer.o", (hidden_size, heads * part.v_head_dim), bias=part.bias)


@part_slots.register
def _(part: CrossAttention, hidden_size: int) -> Iterator[Slot]:
    query_size, key_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
    yield Slot("cross.q", (query_size, hidden_size))
    yield Slot("cross.k", (key_size, hidden_size))
    yield Slot("cross.v", (key_size, hidden_size))
    yield Slot("cross.o", (hidden_size, query_size))
    yield _norm("cross.q_norm", part.head_dim, part.norm)
    yield _norm("cross.k_norm", part.head_dim, part.norm)


@part_slots.register
def _(part: GatedDeltaNet, hidden_size: int) -> Iterator[Slot]:
    interleave_groups, heads = part.key_heads, part.value_heads
    key_size, value_size = part.key_heads * part.key_dim, heads * part.value_dim
    for slot, size in (("q", key_size), ("k", key_size), ("v", value_size), ("z", value_size)):
        yield Slot(f"mixer.{slot}", (size, hidden_size), interleave_groups=interleave_groups)
    yield Slot("mixer.beta", (heads, hidden_size), "vector", interleave_groups=interleave_groups)
    yield Slot("mixer.step", (heads, hidden_size), "vector", interleave_groups=interleave_groups)
    yield Slot("mixer.step_bias", (heads,), "vector", suffix="")
    yield Slot("mixer.decay", (heads,), "vector", suffix="", kind="decay")
    yield Slot("mixer.conv", (part.channels, part.kernel_tokens), "vector")
    yield Slot("mixer.head_norm", (part.value_dim,), "vector")
    yield Slot("mixer.out", (hidden_size, value_size))


@part_slots.register
def _(part: ShortConvolution, hidden_size: int) -> Iterator[Slot]:
    channels, bias = part.channels, part.bias
    yield Slot("mixer.in", (3 * channels, hidden_size), bias=bias)
    yield Slot("mixer.conv", (channels, part.kernel_tokens), "vector", bias)
    yield Slot("mixer.out", (hidden_size, channels), bias=bias)


@part_slots.register
def _(part: Mlp, hidden_size: int) -> Iterator[Slot]:
    yield from _mlp_slots("ffn", part, hidden_size)


def _mlp_slots(name: str, part: Mlp, hidden_size: int, experts: int = 0) -> Iterator[Slot]:
    wide, bias = part.intermediate, part.bias
    if part.gated:
        yield Slot(
            f"{name}.gate", (wide, hidden_size), bias=bias, experts=experts, interleave_groups=wide
        )
    yield Slot(
        f"{name}.up", (wide, hidden_size), bias=bias, experts=experts, interleave_groups=wide
    )
    yield Slot(f"{name}.down", (hidden_size, wide), bias=bias, experts=experts)


@part_slots.register
def _(part: Moe, hidden_size: int) -> Iterator[Slot]:
    router = part.router
    yield Slot("ffn.router", (router.experts, hidden_size), "vector", router.bias)
    if router.score_correction_bias:
        yield Slot("ffn.router.correction", (router.experts,), "vector", suffix="")
    yield from _mlp_slots("ffn.experts.{expert}", part.expert, hidden_size, router.experts)
    if part.shared is not None:
        yield from _mlp_slots("ffn.shared", part.shared, hidden_size)
    if part.shared_gate:
        yield Slot("ffn.shared_gate", (hidden_size,), "vector")


def layer_slots(layer: Layer, hidden_size: int) -> Iterator[Slot]:
    yield _norm("mixer.norm", hidden_size, layer.norm)
    yield from part_slots(layer.mixer, hidden_size)
    if layer.style == "sandwich":
        yield _norm("mixer.post_norm", hidden_size, layer.norm)
    if layer.style == "gated":
        yield Slot("mixer.residual_gate", (1,), "vector", suffix="")
        yield Slot("ffn.residual_gate", (1,), "vector", suffix="")
    if layer.style != "parallel":
        yield _norm("ffn.norm", hidden_size, layer.norm)
    yield from part_slots(layer.feed_forward, hidden_size)
    if layer.style == "sandwich":
        yield _norm("ffn.post_norm", hidden_size, layer.norm)


def model_slots(spec: ModelSpec) -> Iterator[Slot]:
    yield Slot("embedding", (spec.vocab_size + spec.extra_tokens, spec.hidden_size), "embedding")
    yield _norm("norm", spec.hidden_size, spec.norm)
    if not spec.tied_head:
        yield Slot("head", (spec.vocab_size, spec.hidden_size), "head", spec.head_bias)
    elif spec.head_bias:
        yield Slot("head", (spec.vocab_size,), "vector", suffix=".bias")
    for name, pairs in sorted(_factor_tables(spec)):
        yield Slot(name, (pairs,), "vector")


def _factor_tables(spec: ModelSpec) -> set[tuple[str, int]]:
    """(slot, rotary pairs) of frequency factors that are tensors of the file."""
    ropes = {layer.mixer.rope for layer in spec.layers}
    found = set()
    for rope in ropes:
        if rope is not None and rope.scaling is not None:
            found |= {(slot, rope.dim // 2) for slot in rope.scaling.file_slots}
    return found
