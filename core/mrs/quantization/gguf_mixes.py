"""Which tensors of a GGUF file get more bits, by the names that llama.cpp has for such mixes.

The rules are those of its `llama-quantize`, so that a file of a name has the bits that people
expect of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mrs.formats import FORMATS, Format

#: What `general.file_type` calls a file, by the value of `--isq`: of a mix, or of a format.
FILE_TYPES: Mapping[str, int] = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K": 14,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K": 16,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "BF16": 32,
    "MXFP4": 38,
}
#: A model of so many experts has more bits in its attention.
_EXPERTS = 8


@dataclass(frozen=True)
class Place:
    """The index of a matrix among the `count` ones of its kind, and the experts of a layer."""

    index: int
    count: int
    experts: int = 0

    @property
    def is_first_eighth(self) -> bool:
        return self.index < self.count // 8

    @property
    def has_more_bits(self) -> bool:
        """Whether it is in the first or last eighth, or every third one between them."""
        eighth = self.count // 8
        is_last = self.index >= 7 * self.count // 8
        return self.is_first_eighth or is_last or (self.index - eighth) % 3 == 2


_Rule = Callable[[Place], str | None]


def _always(name: str) -> _Rule:
    return lambda place: name


def _where(test: Callable[[Place], bool], name: str, other: str | None = None) -> _Rule:
    return lambda place: name if test(place) else other


_OF_MORE = _where(lambda place: place.has_more_bits, "Q6_K")
#: Mix -> ending of a tensor's name -> its format, None for the usual one.
_RULES: Mapping[str, Mapping[str, _Rule]] = {
    "Q3_K_S": {},
    "Q3_K_M": {
        "attn_v": _where(lambda place: place.index < 2, "Q5_K", "Q4_K"),
        "attn_qkv": _always("Q4_K"),
        "attn_output": _where(lambda place: place.experts != _EXPERTS, "Q4_K"),
        "ffn_down": _where(lambda place: place.index < place.count // 16, "Q5_K", "Q4_K"),
    },
    "Q3_K_L": {
        "attn_v": _always("Q5_K"),
        "attn_qkv": _always("Q5_K"),
        "attn_output": _where(lambda place: place.experts != _EXPERTS, "Q5_K"),
        "ffn_down": _always("Q5_K"),
    },
    "Q4_K_S": {
        "attn_v": _where(lambda place: place.index < 4, "Q5_K"),
        "attn_qkv": _where(lambda place: place.index < 4, "Q5_K"),
        "ffn_down": _where(lambda place: place.is_first_eighth, "Q5_K"),
    },
    "Q4_K_M": {"attn_v": _OF_MORE, "attn_qkv": _OF_MORE, "ffn_down": _OF_MORE},
    "Q5_K_S": {},
    "Q5_K_M": {"attn_v": _OF_MORE, "attn_qkv": _OF_MORE, "ffn_down": _OF_MORE},
}
#: Kinds of matrices that have more bits beside few experts, in mixes of few bits.
_BESIDE_EXPERTS = {"attn_v": "Q8_0", "attn_k": "Q8_0", "attn_output": "Q5_K"}
_FEW_BITS = ("Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M")


def mix_name(isq: str | None) -> str | None:
    """The name of the mix that a value of `--isq` is, None for one format."""
    name = (isq or "").strip().upper()
    return name if name in _RULES else None


def kind_of(tensor: str) -> str:
    """The kind of a tensor of a layer, by which mixes choose: `ffn_down` also of all experts."""
    module = tensor.removesuffix(".weight").rpartition(".")[2]
    return "ffn_down" if module.startswith("ffn_down") else module


def layer_of(tensor: str) -> int:
    """The number of the layer in the name of a tensor; 0 without one."""
    number = tensor.split(".")[1]
    return int(number) if number.isdigit() else 0


def mixed_format(mix: str, tensor: str, usual: Format, place: Place) -> Format:
    """The format of a matrix of a layer in this mix, whose usual one is `usual`."""
    kind = kind_of(tensor)
    is_beside = place.experts == _EXPERTS and kind in _BESIDE_EXPERTS
    if is_beside and (kind != "attn_output" or mix in _FEW_BITS):
        return FORMATS[_BESIDE_EXPERTS[kind]]
    rule = _RULES[mix].get(kind)
    name = rule(place) if rule is not None else None
    return usual if name is None else FORMATS[name]
