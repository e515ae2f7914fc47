"""Quantized matrices as bit planes: the layout that the Triton kernels read.

A GGUF block mixes codes and scales, and few of its fields begin where a wide load may. Here each
bit field of all rows has a tensor of its own (a plane), so that neighbouring threads read
neighbouring words of 8 to 32 bits, and nothing else. A word packs the same bits of eight codes
whose columns are far apart: so one word is multiplied with eight runs of neighbouring
activations. The planes have as many bytes as the file's blocks, in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

#: Values that a word packs.
WORD_ELEMENTS = 8

#: Distances between matrices of which a kernel reads any are multiples of it: it relies on that for
#: its widest loads.
ALIGNMENT_BYTES = 64

#: The word type of a plane, by the bits of each element.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class PlaneLayout:
    """A quantization: weight = d * (scale - scale_zero) * (code - code_zero) + base * minimum.

    code      `code_bits` bits, one for each column
    d, base   float16, or float32 if `is_wide`, one for each `block` columns; `base` only if
              `has_base`
    scale     integer of `scale_bits` bits, one for each `sub_block` columns
    minimum   like `scale`, if `has_base`

    With `scale_bits` 0, `scale - scale_zero` and `minimum` are 1, and `sub_block` is the number of
    words that a kernel reads together.

    If `is_float`, codes are floats: of 8 bits e4m3, and of 4 bits e2m1, whose `d` are powers of two
    as bytes, 2**(d - 127).
    """

    block: int
    code_bits: int
    code_zero: int
    has_base: bool
    sub_block: int = 4
    scale_bits: int = 0
    scale_zero: int = 0
    is_wide: bool = False
    is_float: bool = False

    def for_columns(self, columns: int) -> PlaneLayout:
        """The same for kernels that read rows of so many columns: more words together, if those
        of each element share `d` and `base`.
        """
        if self.scale_bits:
            return self
        words = 16 if self.is_wide else 32
        return replace(self, sub_block=words if columns % (WORD_ELEMENTS * words) == 0 else 4)

    @property
    def d_type(self) -> torch.dtype:
        """The type of `d` and `base`."""
        if self.is_float and self.code_bits == 4:
            return torch.uint8
        return torch.float32 if self.is_wide else torch.float16

    @property
    def code_low(self) -> int:
        """Bits of a code in the plane of low bits."""
        return _low_bits(self.code_bits)

    @property
    def code_high(self) -> int:
        return self.code_bits - self.code_low

    @property
    def scale_low(self) -> int:
        return _low_bits(self.scale_bits)

    @property
    def scale_high(self) -> int:
        return self.scale_bits - self.scale_low


def _low_bits(bits: int) -> int:
    """The bits that the low plane stores of values of `bits` bits: 4, 2, 1, or 0 for 0 bits."""
    return min(1 << bits.bit_length() >> 1, 4)


class BlockFields(NamedTuple):
    """The fields of some rows of blocks; None for a field that the quantization lacks.

    `codes` uint8 (N, columns); `scales` and `minima` uint8 (N, columns / sub_block); `d` and
    `base` (N, columns / block) of the layout's `d_type`.
    """

    codes: Tensor
    d: Tensor
    base: Tensor | None = None
    scales: Tensor | None = None
    minima: Tensor | None = None


class Planes(NamedTuple):
    """One tensor (rows, words per row) for each bit field, all views of one allocation.

    Values of 3, 5 and 6 bits are split into `low` and `high` bits. `_to_words` defines which
    columns the eight elements of a word of codes belong to. A word of scales or minima belongs to
    a group of `sub_block` adjacent words of codes.
    """

    codes_low: Tensor
    codes_high: Tensor | None
    scales_low: Tensor | None
    scales_high: Tensor | None
    minima_low: Tensor | None
    minima_high: Tensor | None
    d: Tensor
    base: Tensor | None


def allocate(
    layout: PlaneLayout, rows: int, columns: int, device: torch.device
) -> tuple[Tensor, Planes]:
    """The memory of a matrix, uint8, and its planes as views of it; all uninitialized."""
    specs = _plane_specs(layout, columns)
    sizes = {name: rows * words * dtype.itemsize for name, (words, dtype) in specs.items()}
    data = torch.empty(sum(sizes.values()), dtype=torch.uint8, device=device)
    planes: dict[str, Tensor | None] = dict.fromkeys(Planes._fields)
    start = 0
    # Wider words first: then each plane begins at a multiple of its word size.
    for name, (words, dtype) in sorted(specs.items(), key=lambda item: -item[1][1].itemsize):
        end = start + sizes[name]
        planes[name] = data[start:end].view(dtype).view(rows, words)
        start = end
    return data, Planes(**planes)  # type: ignore[arg-type]


def _plane_specs(layout: PlaneLayout, columns: int) -> dict[str, tuple[int, torch.dtype]]:
    """Words per row and their type, for each plane of the layout."""
    if columns % layout.block:
        raise ValueError(f"rows of {columns} columns are not whole blocks of {layout.block}")
    words, blocks = columns // WORD_ELEMENTS, columns // layout.block
    groups = words // layout.sub_block
    counts_and_bits = {
        "codes_low": (words, layout.code_low),
        "codes_high": (words, layout.code_high),
        "scales_low": (groups, layout.scale_low),
        "scales_high": (groups, layout.scale_high),
        "minima_low": (groups, layout.scale_low * layout.has_base),
        "minima_high": (groups, layout.scale_high * layout.has_base),
    }
    specs = {name: (count, _WORDS[bits]) for name, (count, bits) in counts_and_bits.items() if bits}
    specs["d"] = blocks, layout.d_type
    if layout.has_base:
        specs["base"] = blocks, layout.d_type
    return specs


def write_planes(layout: PlaneLayout, planes: Planes, fields: BlockFields, first_row: int) -> None:
    """Write the fields of some rows from row `first_row` on."""
    rows = slice(first_row, first_row + len(fields.codes))

    def write(low: Tensor | None, high: Tensor | None, values: Tensor | None, bits: int) -> None:
        if low is None or values is None:
            return
        low_bits = _low_bits(bits)
        low[rows] = _pack(values & ((1 << low_bits) - 1), low_bits)
        if high is not None:
            high[rows] = _pack(values >> low_bits, bits - low_bits)

    codes = _to_words(layout, fields.codes, layout.sub_block)
    write(planes.codes_low, planes.codes_high, codes, layout.code_bits)
    scales, minima = (
        None if values is None else _to_words(layout, values, 1)
        for values in (fields.scales, fields.minima)
    )
    write(planes.scales_low, planes.scales_high, scales, layout.scale_bits)
    write(planes.minima_low, planes.minima_high, minima, layout.scale_bits)
    planes.d[rows] = fields.d
    if planes.base is not None and fields.base is not None:
        planes.base[rows] = fields.base


def decode_rows(layout: PlaneLayout, planes: Planes, ids: Tensor) -> Tensor:
    """The weights of the rows `ids` (N,), float32 (N, columns)."""

    def read(low: Tensor, high: Tensor | None, bits: int, group_words: int) -> Tensor:
        low_bits = _low_bits(bits)
        values = _unpack(low[ids], low_bits)
        if high is not None:
            values |= _unpack(high[ids], bits - low_bits) << low_bits
        return _from_words(layout, values, group_words).float()

    codes = read(planes.codes_low, planes.codes_high, layout.code_bits, layout.sub_block)
    scale, base = planes.d[ids].float(), None
    if layout.is_float:
        codes = _float_values(codes.int(), layout)
        scale = torch.exp2(scale - 127) if layout.d_type == torch.uint8 else scale
    columns = codes.shape[1]
    if planes.scales_low is not None:
        scales = read(planes.scales_low, planes.scales_high, layout.scale_bits, 1)
        scale = _repeated(scale, scales.shape[1]) * (scales - layout.scale_zero)
    if planes.base is not None:
        base = planes.base[ids].float()
    if planes.minima_low is not None and base is not None:
        minima = read(planes.minima_low, planes.minima_high, layout.scale_bits, 1)
        base = _repeated(base, minima.shape[1]) * minima
    weights = _repeated(scale, columns) * (codes - layout.code_zero)
    return weights if base is None else weights + _repeated(base, columns)


def _float_values(codes: Tensor, layout: PlaneLayout) -> Tensor:
    """The values of e4m3 or e2m1 codes, int32, in float32: their bits are those of a float16."""
    sign = codes >> layout.code_bits - 1
    exponent_bits, fraction_bits = (4, 3) if layout.code_bits == 8 else (2, 1)
    magnitude = codes & (1 << layout.code_bits - 1) - 1
    half = (sign << 15 | magnitude << 10 - fraction_bits).short().view(torch.float16)
    return half.float() * 2.0 ** (16 - (1 << exponent_bits - 1))


def _repeated(values: Tensor, columns: int) -> Tensor:
    """(N, n) to (N, columns): each value for columns / n adjacent columns."""
    return values.repeat_interleave(columns // values.shape[1], 1)


def _to_words(layout: PlaneLayout, values: Tensor, group_words: int) -> Tensor:
    """(N, columns) to (N, words, 8 elements); for scales and minima with `group_words` 1.

    With integer scales, element e of word w of a block is the block's column e * 32 + w, or its
    scale e * 32 / sub_block + w. Without, element e of word w of a row is column e * words + w.
    """
    rows = len(values)
    if not layout.scale_bits:
        return values.view(rows, WORD_ELEMENTS, -1).transpose(1, 2)
    words = layout.block // WORD_ELEMENTS // layout.sub_block * group_words
    shape = (rows, -1, WORD_ELEMENTS, words)
    return values.view(shape).transpose(2, 3).reshape(rows, -1, WORD_ELEMENTS)


def _from_words(layout: PlaneLayout, words: Tensor, group_words: int) -> Tensor:
    """The inverse of `_to_words`."""
    rows = len(words)
    if not layout.scale_bits:
        return words.transpose(1, 2).reshape(rows, -1)
    count = layout.block // WORD_ELEMENTS // layout.sub_block * group_words
    return words.view(rows, -1, count, WORD_ELEMENTS).transpose(2, 3).reshape(rows, -1)


def _pack(values: Tensor, bits: int) -> Tensor:
    """Pack eight values of `bits` bits to a word, the first lowest: uint8 (N, n, 8) to (N, n)."""
    per_byte = WORD_ELEMENTS // bits
    shifts = torch.arange(0, WORD_ELEMENTS, bits, device=values.device, dtype=torch.uint8)
    shifted = values.reshape(*values.shape[:2], bits, per_byte) << shifts
    packed = shifted.sum(-1, dtype=torch.uint8)
    return packed.view(_WORDS[bits]).squeeze(-1)


def _unpack(words: Tensor, bits: int) -> Tensor:
    """The inverse of `_pack`: (N, n) to uint8 (N, n, 8)."""
    packed = words.contiguous().view(torch.uint8).view(*words.shape, bits, 1)
    shifts = torch.arange(0, WORD_ELEMENTS, bits, device=words.device, dtype=torch.uint8)
    return ((packed >> shifts) & ((1 << bits) - 1)).view(*words.shape, WORD_ELEMENTS)
