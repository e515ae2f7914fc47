"""List the weights of a language model as slots: names and shapes, independent of any file."""

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

#: Kinds of weights that some containers store transformed: `norm` (by some families as an offset
#: from one), `offset_norm` (always as an offset from one) and `decay` (as a logarithm).
WeightKind = Literal["plain", "norm", "offset_norm", "decay"]


@dataclass(frozen=True)
class Slot:
    """One weight of a model, by this project's name for it, with an optional bias.

    With `experts` there is one weight per expert, and `{expert}` in `name` stands for its index.
    If a file interleaves the slot with others in a fused tensor, its rows are split into
    `interleave_groups` groups of equal size.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "matrix"
    bias: bool = False
    kind: WeightKind = "plain"
    suffix: str = ".weight"
    experts: int = 0
    interleave_groups: int = 1

    @property
    def rows(self) -> int:
        """Rows of the weight as a matrix: the product of all dimensions but the last one."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]


def _norm(name: str, size: int, norm: Norm) -> Slot:
    return Slot(name, (size,), "vector", norm.bias, kind="norm")


@singledispatch
def slots_of(module: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a mixer, an MLP or a mixture of experts, in a model of `hidden_size`."""
    raise TypeError(f"no slots are known for {type(module).__name__}")


@slots_of.register
def _(attention: Attention, hidden_size: int) -> Iterator[Slot]:
    query_size = attention.heads * attention.head_dim
    key_size = attention.kv_heads * attention.head_dim
    query_rows = 2 * query_size if attention.gated else query_size
    yield Slot("mixer.q", (query_rows, hidden_size), bias=attention.qkv_bias)
    yield Slot("mixer.k", (key_size, hidden_size), bias=attention.qkv_bias)
    yield Slot("mixer.v", (key_size, hidden_size), bias=attention.qkv_bias)
    yield Slot("mixer.o", (hidden_size, query_size), bias=attention.out_bias)
    if attention.qk_norm is not None:
        whole = attention.qk_norm_whole
        yield _norm("mixer.q_norm", query_size if whole else attention.head_dim, attention.qk_norm)
        yield _norm("mixer.k_norm", key_size if whole else attention.head_dim, attention.qk_norm)
    if attention.sinks:
        yield Slot("mixer.sinks", (attention.heads,), "vector", suffix="")


@slots_of.register
def _(mla: LatentAttention, hidden_size: int) -> Iterator[Slot]:
    heads, latent = mla.heads, mla.kv_lora_rank
    query_rows = heads * (mla.qk_nope_head_dim + mla.rope.dim)
    if mla.q_lora_rank is None:
        yield Slot("mixer.q", (query_rows, hidden_size))
    else:
        yield Slot("mixer.q_a", (mla.q_lora_rank, hidden_size), bias=mla.bias)
        yield _norm("mixer.q_a_norm", mla.q_lora_rank, mla.norm)
        yield Slot("mixer.q_b", (query_rows, mla.q_lora_rank))
    yield Slot("mixer.kv_a", (latent + mla.rope.dim, hidden_size), bias=mla.bias)
    yield _norm("mixer.kv_a_norm", latent, mla.norm)
    yield Slot("mixer.k_b", (heads, mla.qk_nope_head_dim, latent), "dense", interleave_groups=heads)
    yield Slot("mixer.v_b", (heads, mla.v_head_dim, latent), "dense", interleave_groups=heads)
    yield Slot("mixer.o", (hidden_size, heads * mla.v_head_dim), bias=mla.bias)


@slots_of.register
def _(attention: CrossAttention, hidden_size: int) -> Iterator[Slot]:
    query_size = attention.heads * attention.head_dim
    key_size = attention.kv_heads * attention.head_dim
    yield Slot("cross.q", (query_size, hidden_size))
    yield Slot("cross.k", (key_size, hidden_size))
    yield Slot("cross.v", (key_size, hidden_size))
    yield Slot("cross.o", (hidden_size, query_size))
    yield _norm("cross.q_norm", attention.head_dim, attention.norm)
    yield _norm("cross.k_norm", attention.head_dim, attention.norm)


@slots_of.register
def _(delta_net: GatedDeltaNet, hidden_size: int) -> Iterator[Slot]:
    groups, heads = delta_net.key_heads, delta_net.value_heads
    key_size, value_size = groups * delta_net.key_dim, heads * delta_net.value_dim
    for slot, size in (("q", key_size), ("k", key_size), ("v", value_size), ("z", value_size)):
        yield Slot(f"mixer.{slot}", (size, hidden_size), interleave_groups=groups)
    yield Slot("mixer.beta", (heads, hidden_size), "vector", interleave_groups=groups)
    yield Slot("mixer.step", (heads, hidden_size), "vector", interleave_groups=groups)
    yield Slot("mixer.step_bias", (heads,), "vector", suffix="")
    yield Slot("mixer.decay", (heads,), "vector", suffix="", kind="decay")
    yield Slot("mixer.conv", (delta_net.channels, delta_net.kernel_tokens), "vector")
    yield Slot("mixer.head_norm", (delta_net.value_dim,), "vector")
    yield Slot("mixer.out", (hidden_size, value_size))


@slots_of.register
def _(convolution: ShortConvolution, hidden_size: int) -> Iterator[Slot]:
    channels, bias = convolution.channels, convolution.bias
    yield Slot("mixer.in", (3 * channels, hidden_size), bias=bias)
    yield Slot("mixer.conv", (channels, convolution.kernel_tokens), "vector", bias)
    yield Slot("mixer.out", (hidden_size, channels), bias=bias)


@slots_of.register
def _(mlp: Mlp, hidden_size: int) -> Iterator[Slot]:
    yield from _mlp_slots("ffn", mlp, hidden_size)


def _mlp_slots(name: str, mlp: Mlp, hidden_size: int, experts: int = 0) -> Iterator[Slot]:
    rows, bias = mlp.intermediate, mlp.bias
    for slot in ("gate", "up") if mlp.gated else ("up",):
        shape = (rows, hidden_size)
        yield Slot(f"{name}.{slot}", shape, bias=bias, experts=experts, interleave_groups=rows)
    yield Slot(f"{name}.down", (hidden_size, rows), bias=bias, experts=experts)


@slots_of.register
def _(moe: Moe, hidden_size: int) -> Iterator[Slot]:
    router = moe.router
    yield Slot("ffn.router", (router.experts, hidden_size), "vector", router.bias)
    if router.score_correction_bias:
        yield Slot("ffn.router.correction", (router.experts,), "vector", suffix="")
    yield from _mlp_slots("ffn.experts.{expert}", moe.expert, hidden_size, router.experts)
    if moe.shared is not None:
        yield from _mlp_slots("ffn.shared", moe.shared, hidden_size)
    if moe.shared_gate:
        yield Slot("ffn.shared_gate", (hidden_size,), "vector")


def layer_slots(layer: Layer, hidden_size: int) -> Iterator[Slot]:
    yield _norm("mixer.norm", hidden_size, layer.norm)
    yield from slots_of(layer.mixer, hidden_size)
    if layer.style == "sandwich":
        yield _norm("mixer.post_norm", hidden_size, layer.norm)
    if layer.style == "gated":
        yield Slot("mixer.residual_gate", (1,), "vector", suffix="")
        yield Slot("ffn.residual_gate", (1,), "vector", suffix="")
    if layer.style != "parallel":
        yield _norm("ffn.norm", hidden_size, layer.norm)
    yield from slots_of(layer.feed_forward, hidden_size)
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
