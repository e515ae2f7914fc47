"""List every tensor that a running model holds, with its shape and where a file keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, singledispatch

from mrs.families.names import JOINT
from mrs.families.spec import Attention, Layer, Mlp, ModelSpec, Norm, Parameter, Piece, Role


@dataclass(frozen=True)
class Slot:
    """One part of a layer or model: its name, the shape of its weight, whether it has a bias."""

    name: str
    shape: tuple[int, ...]
    role: Role = "matrix"
    bias: bool = False
    is_norm: bool = False
    suffix: str = ".weight"


def _norm(name: str, size: int, norm: Norm) -> Slot:
    return Slot(name, (size,), "vector", norm.bias, is_norm=True)


@singledispatch
def part_slots(part: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a mixer or a feed-forward part; one case a kind."""
    raise TypeError(f"no slots are known for {type(part).__name__}")


@part_slots.register
def _(part: Attention, hidden_size: int) -> Iterator[Slot]:
    query_size, key_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
    yield Slot("mixer.q", (query_size, hidden_size), bias=part.qkv_bias)
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
def _(part: Mlp, hidden_size: int) -> Iterator[Slot]:
    if part.gated:
        yield Slot("ffn.gate", (part.intermediate, hidden_size), bias=part.bias)
    yield Slot("ffn.up", (part.intermediate, hidden_size), bias=part.bias)
    yield Slot("ffn.down", (hidden_size, part.intermediate), bias=part.bias)


def layer_slots(layer: Layer, hidden_size: int) -> Iterator[Slot]:
    yield _norm("mixer.norm", hidden_size, layer.norm)
    yield from part_slots(layer.mixer, hidden_size)
    if layer.style == "sandwich":
        yield _norm("mixer.post_norm", hidden_size, layer.norm)
    if layer.style != "parallel":
        yield _norm("ffn.norm", hidden_size, layer.norm)
    yield from part_slots(layer.feed_forward, hidden_size)
    if layer.style == "sandwich":
        yield _norm("ffn.post_norm", hidden_size, layer.norm)


def model_slots(spec: ModelSpec) -> Iterator[Slot]:
    yield Slot("embedding", (spec.vocab_size, spec.hidden_size), "embedding")
    yield _norm("norm", spec.hidden_size, spec.norm)
    if not spec.tied_head:
        yield Slot("head", (spec.vocab_size, spec.hidden_size), "head", spec.head_bias)
    elif spec.head_bias:
        yield Slot("head", (spec.vocab_size,), "vector", suffix=".bias")
    for name, pairs in sorted(_factor_tables(spec)):
        yield Slot(name, (pairs,), "vector")


def _factor_tables(spec: ModelSpec) -> set[tuple[str, int]]:
    """(slot, rotary pairs) of frequency factors that are tensors of the file."""
    ropes = {layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention)}
    found = set()
    for rope in ropes:
        if rope is not None and rope.scaling is not None:
            found |= {(slot, rope.dim // 2) for slot in rope.scaling.file_slots}
    return found


def list_parameters(
    spec: ModelSpec, names: Mapping[str, str], *, norm_plus_one: bool = False
) -> list[Parameter]:
    """Every parameter of the model, bound to the names of one container.

    `names` is a slot table as in `names.py`, the family's changes included.
    """
    bind = partial(_bind, names=names, norm_plus_one=norm_plus_one)
    parameters: list[Parameter] = []
    for slot in model_slots(spec):
        parameters += bind(slot, "", "", None, {})
    for index, layer in enumerate(spec.layers):
        slots = list(layer_slots(layer, spec.hidden_size))
        joint = _joint_rows(slots, names)
        prefix = names["layer"].format(layer=index)
        for slot in slots:
            parameters += bind(slot, f"layers.{index}.", prefix, index, joint)
    return parameters


def _joint_rows(
    slots: list[Slot], names: Mapping[str, str]
) -> dict[str, tuple[str, tuple[int, int]]]:
    """slot -> (module of the joint tensor, its rows there), for joints that `names` lists."""
    rows_of = {slot.name: slot.shape[0] for slot in slots}
    found = {}
    for joint, parts in JOINT.items():
        if joint not in names:
            continue
        start = 0
        for part in parts:
            found[part] = (names[joint], (start, start + rows_of[part]))
            start += rows_of[part]
    return found


def _bind(
    slot: Slot,
    own_prefix: str,
    file_prefix: str,
    layer: int | None,
    joint: Mapping[str, tuple[str, tuple[int, int]]],
    *,
    names: Mapping[str, str],
    norm_plus_one: bool,
) -> Iterator[Parameter]:
    module, rows = joint.get(slot.name) or (names[slot.name], None)
    yield Parameter(
        name=f"{own_prefix}{slot.name}{slot.suffix}",
        shape=slot.shape,
        role=slot.role,
        layer=layer,
        pieces=(
            Piece(f"{file_prefix}{module}{slot.suffix}", rows, slot.is_norm and norm_plus_one),
        ),
    )
    if slot.bias:
        yield Parameter(
            name=f"{own_prefix}{slot.name}.bias",
            shape=slot.shape[:1],
            role="vector",
            layer=layer,
            pieces=(Piece(f"{file_prefix}{module}.bias", rows),),
        )
