"""Quantized matrices with every kind of number in a plane of its own, as GPUs read them.

A file's blocks mix codes and scales, and few of their fields begin where a wide load may. Here a
plane holds one bit field of all rows, so that neighbouring threads read neighbouring words of 8
to 32 bits, and nothing else. Eight numbers make a word: the same bits of eight codes that stand
far apart, so that one word is multiplied with eight runs of neighbouring activations. The bytes
are those of the file, in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: Numbers that share a word.
PARTS = 8

#: What a plane's words are, by the bits of each of their eight numbers.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class PlaneLayout:
    """A quantization: weight = d * scale * (code - code_zero) + base * minimum.

    Codes have `code_bits`. `block` columns share the halves d and, if it `has_base`, base. Where
    there are integer scales (less `scale_zero`, of `scale_bits`), and minima of as many bits if
    there is a base, `run` columns share one; elsewhere they are 1 and a run is 4 words.
    """

    block: int
    code_bits: int
    code_zero: int
    has_base: bool
    run: int = 4
    scale_bits: int = 0
    scale_zero: int = 0

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
    """The largest of 4, 2 and 1 in a number of bits, 0 for none."""
    return min(1 << bits.bit_length() >> 1, 4)


class Fields(NamedTuple):
    """The numbers of some rows: uint8 codes (N, columns), scales and minima (N, columns / run);
    halves d and base (N, columns / block). None for what the quantization has not."""

    codes: Tensor
    d: Tensor
    base: Tensor | None = None
    scales: Tensor | None = None
    minima: Tensor | None = None


class Planes(NamedTuple):
    """One tensor (rows, words in a row) for each kind of number, views of one allocation.

    Numbers of 3, 5 and 6 bits are split into `low` and `high` bits. A word of codes is number w of
    its row; its eight codes are those of the columns that `_to_words` says. Words of scales and
    minima belong to `run` words of codes that follow one another.
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
    """The memory of a matrix, uint8, and its planes in it, not yet written."""
    specs = _plane_specs(layout, columns)
    sizes = {name: rows * words * dtype.itemsize for name, (words, dtype) in specs.items()}
    data = torch.empty(sum(sizes.values()), dtype=torch.uint8, device=device)
    planes: dict[str, Tensor | None] = dict.fromkeys(Planes._fields)
    start = 0
    # Wider words first: then each plane begins at a multiple of its words.
    for name, (words, dtype) in sorted(specs.items(), key=lambda item: -item[1][1].itemsize):
        end = start + sizes[name]
        planes[name] = data[start:end].view(dtype).view(rows, words)
        start = end
    return data, Planes(**planes)  # type: ignore[arg-type]


def _plane_specs(layout: PlaneLayout, columns: int) -> dict[str, tuple[int, torch.dtype]]:
    """Words in a row and their type, for each plane that there is."""
    if columns % layout.block:
        raise ValueError(f"rows of {columns} columns cut blocks of {layout.block}")
    words, halves = columns // PARTS, columns // layout.block
    runs = words // layout.run
    counts_and_bits = {
        "codes_low": (words, layout.code_low),
        "codes_high": (words, layout.code_high),
        "scales_low": (runs, layout.scale_low),
        "scales_high": (runs, layout.scale_high),
        "minima_low": (runs, layout.scale_low * layout.has_base),
        "minima_high": (runs, layout.scale_high * layout.has_base),
    }
    specs = {name: (count, _WORDS[bits]) for name, (count, bits) in counts_and_bits.items() if bits}
    specs["d"] = halves, torch.float16
    if layout.has_base:
        specs["base"] = halves, torch.float16
    return specs


def write_planes(layout: PlaneLayout, planes: Planes, fields: Fields, first_row: int) -> None:
    """Put the numbers of some rows into their places."""
    rows = slice(first_row, first_row + len(fields.codes))

    def write(low: Tensor | None, high: Tensor | None, numbers: Tensor | None, bits: int) -> None:
        if low is None or numbers is None:
            return
        low_bits = _low_bits(bits)
        low[rows] = _pack(numbers & ((1 << low_bits) - 1), low_bits)
        if high is not None:
            high[rows] = _pack(numbers >> low_bits, bits - low_bits)

    codes = _to_words(layout, fields.codes, layout.run)
    write(planes.codes_low, planes.codes_high, codes, layout.code_bits)
    scales, minima = (
        None if numbers is None else _to_words(layout, numbers, 1)
        for numbers in (fields.scales, fields.minima)
    )
    write(planes.scales_low, planes.scales_high, scales, layout.scale_bits)
    write(planes.minima_low, planes.minima_high, minima, layout.scale_bits)
    planes.d[rows] = fields.d
    if planes.base is not None and fields.base is not None:
        planes.base[rows] = fields.base


def decode_rows(layout: PlaneLayout, planes: Planes, ids: Tensor) -> Tensor:
    """The weights of the rows `ids` (N,), float32 (N, columns)."""

    def numbers(low: Tensor, high: Tensor | None, bits: int, run: int) -> Tensor:
        low_bits = _low_bits(bits)
        values = _unpack(low[ids], low_bits)
        if high is not None:
            values |= _unpack(high[ids], bits - low_bits) << low_bits
        return _from_words(layout, values, run).float()

    codes = numbers(planes.codes_low, planes.codes_high, layout.code_bits, layout.run)
    scale, base = planes.d[ids].float(), None
    columns = codes.shape[1]
    if planes.scales_low is not None:
        scales = numbers(planes.scales_low, planes.scales_high, layout.scale_bits, 1)
        scale = _spread(scale, scales.shape[1]) * (scales - layout.scale_zero)
    if planes.base is not None:
        base = planes.base[ids].float()
    if planes.minima_low is not None and base is not None:
        minima = numbers(planes.minima_low, planes.minima_high, layout.scale_bits, 1)
        base = _spread(base, minima.shape[1]) * minima
    weights = _spread(scale, columns) * (codes - layout.code_zero)
    return weights if base is None else weights + _spread(base, columns)


def _spread(numbers: Tensor, columns: int) -> Tensor:
    return numbers.repeat_interleave(columns // numbers.shape[1], 1)


def _to_words(layout: PlaneLayout, numbers: Tensor, run: int) -> Tensor:
    """Numbers of columns, or of runs (`run` 1), as (N, words, 8 parts).

    With integer scales, words w to w + run of each 256 columns hold 8 runs of columns, the same
    place in each. Without, part p of word w is column p * words + w.
    """
    rows = len(numbers)
    if not layout.scale_bits:
        return numbers.view(rows, PARTS, -1).transpose(1, 2)
    words = layout.block // PARTS // layout.run * run
    return numbers.view(rows, -1, PARTS, words).transpose(2, 3).reshape(rows, -1, PARTS)


def _from_words(layout: PlaneLayout, words: Tensor, run: int) -> Tensor:
    """The inverse of `_to_words`: (N, columns) or (N, runs)."""
    rows = len(words)
    if not layout.scale_bits:
        return words.transpose(1, 2).reshape(rows, -1)
    count = layout.block // PARTS // layout.run * run
    return words.view(rows, -1, count, PARTS).transpose(2, 3).reshape(rows, -1)


def _pack(numbers: Tensor, bits: int) -> Tensor:
    """Eight numbers, uint8 (N, n, 8), as the bits of one word, the first lowest: (N, n)."""
    together = PARTS // bits
    shifts = torch.arange(0, PARTS, bits, device=numbers.device, dtype=torch.uint8)
    parts = numbers.reshape(*numbers.shape[:2], bits, together) << shifts
    packed = parts.sum(-1, dtype=torch.uint8)
    return packed.view(_WORDS[bits]).squeeze(-1)


def _unpack(words: Tensor, bits: int) -> Tensor:
    """The inverse of `_pack`: (N, n) -> uint8 (N, n, 8)."""
    packed = words.contiguous().view(torch.uint8).view(*words.shape, bits, 1)
    shifts = torch.arange(0, PARTS, bits, device=words.device, dtype=torch.uint8)
    return ((packed >> shifts) & ((1 << bits) - 1)).view(*words.shape, PARTS)
