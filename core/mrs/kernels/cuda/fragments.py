"""Rows of blocks in the order in which the lanes of a warp read them, and back.

16 rows lie together, and of these one tile of 256 columns after the other: as many bytes as the
blocks of a GGUF file. `source/formats.h` says which lane reads what and why; the axes here are

    hi, g     of the 16 rows, row 8 * hi + g, which lane 4 * g + t reads
    t, j, e   of the 256 columns of a tile, column 64 * t + 4 * j + e
    block, m, t, e   of a format with blocks of 32 columns, column 16 * m + 4 * t + e of a block
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.kernels.triton.bit_planes import BlockFields
from mrs.kernels.workspace.fragments import BLOCK_COLUMNS, TILE_COLUMNS, TILE_ROWS


@dataclass(frozen=True)
class FragmentFormat:
    """A format of blocks: how many columns they have, and bytes of 16 rows of a block.

    `pack` makes bytes (N, bytes of 16 rows) of the fields of 16 * N rows, `unpack` fields again.
    """

    block: int
    tile_row_bytes: int
    pack: Callable[[BlockFields], Tensor]
    unpack: Callable[[Tensor], BlockFields]


def _bits(codes: Tensor, shifts: Sequence[Sequence[int]]) -> Tensor:
    """Words int32 of codes (…, hi, e), each shifted by `shifts[hi][e]`."""
    words = torch.zeros(codes.shape[:-2], dtype=torch.int32, device=codes.device)
    for hi, of_row in enumerate(shifts):
        for e, shift in enumerate(of_row):
            words |= codes[..., hi, e].int() << shift
    return words


def _codes(words: Tensor, shifts: Sequence[Sequence[int]], bits: int) -> Tensor:
    """The codes uint8 (…, hi, e) of words."""
    mask = (1 << bits) - 1
    rows = [torch.stack([words >> shift & mask for shift in of_row], -1) for of_row in shifts]
    return torch.stack(rows, -2).byte()


def _shifts(first: int, row: int) -> list[list[int]]:
    """Of four columns, two in each half of a word; those of row 8 + g lie `row` bits higher."""
    return [[first + row * hi + place for place in (0, 16, 8, 24)] for hi in (0, 1)]


_NIBBLES = _shifts(0, 4)
#: Of the fifth bits of four words of codes, which share a word; k is the place of a word among
#: them.
_FIFTHS = [[[4 + k, 20 + k, k, 16 + k], [8 + k, 24 + k, 12 + k, 28 + k]] for k in range(4)]
_PAIRS = [_shifts(0, 2), _shifts(4, 2)]


def _by_lane(codes: Tensor) -> Tensor:
    """Codes (16 N, columns) to (N, tiles, j, g, t, hi, e)."""
    split = codes.view(-1, 2, 8, codes.shape[1] // TILE_COLUMNS, 4, 16, 4)
    return split.permute(0, 3, 5, 2, 4, 1, 6)


def _by_row(codes: Tensor) -> Tensor:
    """The other way."""
    n, tiles = codes.shape[:2]
    return codes.permute(0, 5, 3, 1, 4, 2, 6).reshape(n * TILE_ROWS, tiles * TILE_COLUMNS)


def _quads(words: Tensor) -> Tensor:
    """Words (N, tiles, j, g, t): four of them after another for each lane, as bytes of a tile."""
    n, tiles, count = words.shape[:3]
    return _bytes(words.view(n, tiles, count // 4, 4, 8, 4).permute(0, 1, 2, 4, 5, 3))


def _from_quads(data: Tensor, count: int) -> Tensor:
    n, tiles = data.shape[:2]
    words = _typed(data, torch.int32).view(n, tiles, count // 4, 8, 4, 4)
    return words.permute(0, 1, 2, 5, 3, 4).reshape(n, tiles, count, 8, 4)


def _bytes(values: Tensor) -> Tensor:
    """Values (N, tiles, …) as bytes (N, tiles, bytes)."""
    flat = values.reshape(*values.shape[:2], -1).contiguous()
    return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)


def _typed(data: Tensor, dtype: torch.dtype) -> Tensor:
    return data.contiguous().view(dtype)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts], 2).flatten(1)


def _scales_by_lane(scales: Tensor, each: int) -> Tensor:
    """(16 N, tiles * 4 * each) to (N, tiles, g, t, hi, each)."""
    split = scales.view(-1, 2, 8, scales.shape[1] // (4 * each), 4, each)
    return split.permute(0, 3, 2, 4, 1, 5)


def _scales_by_row(scales: Tensor) -> Tensor:
    return scales.permute(0, 4, 2, 1, 3, 5).reshape(len(scales) * TILE_ROWS, -1)


def _of_rows(values: Tensor) -> Tensor:
    """(16 N, tiles) to (N, tiles, 16)."""
    return values.view(-1, TILE_ROWS, values.shape[1]).transpose(1, 2)


def _of_tiles(values: Tensor) -> Tensor:
    return values.transpose(1, 2).reshape(-1, values.shape[1])


def _required(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("a field of the blocks is missing")
    return value


def _pack_six_bit_scales(fields: BlockFields, *, has_fifth: bool) -> Tensor:
    """Q4_K and Q5_K: `SixBitScales` of formats.h."""
    codes = _by_lane(fields.codes)
    parts = [_quads(_bits(codes & 15, _NIBBLES))]
    if has_fifth:
        fifth = codes >> 4
        words = sum_of_bits([_bits(fifth[:, :, k::4], _FIFTHS[k]) for k in range(4)])
        parts.append(_quads(words))
    scales, minima = (
        # (N, tiles, g, t, sub-block, hi): the bytes of a word
        _scales_by_lane(_required(each), 2).transpose(4, 5)
        for each in (fields.scales, fields.minima)
    )
    parts.append(_bytes((scales & 15) | (minima & 15) << 4))
    high = torch.zeros(scales.shape[:4], dtype=torch.int32, device=scales.device)
    for values, first in ((scales, 0), (minima, 8)):
        flat = values.flatten(4)
        for byte in range(4):
            high |= (flat[..., byte].int() >> 4) << (first + 2 * byte)
    parts.append(_bytes(torch.stack([high & 255, high >> 8], -1).byte()))
    parts.append(_bytes(torch.stack([_of_rows(fields.d), _of_rows(_required(fields.base))], -1)))
    return _joined(parts)


def sum_of_bits(words: Sequence[Tensor]) -> Tensor:
    """The words together, no bit of which two have."""
    found = torch.zeros_like(words[0])
    for each in words:
        found |= each
    return found


def _unpack_six_bit_scales(data: Tensor, *, has_fifth: bool) -> BlockFields:
    tile = 2816 if has_fifth else 2304
    data = data.view(len(data), -1, tile)
    codes = _codes(_from_quads(data[..., :2048], 16), _NIBBLES, 4)
    if has_fifth:
        words = _from_quads(data[..., 2048:2560], 4)
        for k in range(4):
            codes[:, :, k::4] |= _codes(words, _FIFTHS[k], 1) << 4
    low = data[..., tile - 256 : tile - 128].reshape(*data.shape[:2], 8, 4, 4)
    pairs = data[..., tile - 128 : tile - 64].reshape(*data.shape[:2], 8, 4, 2)
    found = []
    for shift, half in ((0, 0), (4, 1)):
        high = torch.stack([pairs[..., half] >> 2 * byte & 3 for byte in range(4)], -1)
        values = (low >> shift & 15) | high << 4
        found.append(_scales_by_row(values.view(*data.shape[:2], 8, 4, 2, 2).transpose(4, 5)))
    d = _typed(data[..., tile - 64 :], torch.float16).view(*data.shape[:2], TILE_ROWS, 2)
    return BlockFields(_by_row(codes), _of_tiles(d[..., 0]), _of_tiles(d[..., 1]), *found)


def _pack_q6_k(fields: BlockFields) -> Tensor:
    codes = _by_lane(fields.codes)
    high = codes >> 4
    words = sum_of_bits([_bits(high[:, :, k::2], _PAIRS[k]) for k in (0, 1)])
    return _joined(
        [
            _quads(_bits(codes & 15, _NIBBLES)),
            _quads(words),
            _bytes(_scales_by_lane(_required(fields.scales), 4)),
            _bytes(_of_rows(fields.d)),
        ]
    )


def _unpack_q6_k(data: Tensor) -> BlockFields:
    data = data.view(len(data), -1, 3360)
    codes = _codes(_from_quads(data[..., :2048], 16), _NIBBLES, 4)
    words = _from_quads(data[..., 2048:3072], 8)
    for k in (0, 1):
        codes[:, :, k::2] |= _codes(words, _PAIRS[k], 2) << 4
    scales = data[..., 3072:3328].reshape(*data.shape[:2], 8, 4, 2, 4)
    d = _typed(data[..., 3328:], torch.float16)
    return BlockFields(_by_row(codes), _of_tiles(d), None, _scales_by_row(scales))


def _block_order(blocks: int, device: torch.device) -> Tensor:
    """Of each tile the even blocks and then the odd ones."""
    tiles = range(0, blocks, 8)
    order = [b for tile in tiles for odd in (0, 1) for b in range(tile + odd, tile + 8, 2)]
    return torch.tensor([b for b in order if b < blocks], device=device)


def _pack_one_scale(fields: BlockFields, *, bits: int) -> Tensor:
    """Q8_0 and Q4_0: `OneScale` of formats.h."""
    rows, columns = fields.codes.shape
    order = _block_order(columns // 32, fields.codes.device)
    split = fields.codes.view(rows // TILE_ROWS, 2, 8, -1, 2, 4, 4)
    codes = split.permute(0, 3, 2, 5, 4, 1, 6)[:, order]  # (N, block, g, t, m, hi, e)
    if bits == 8:
        packed = _bytes(codes.reshape(*codes.shape[:6], 2, 2).transpose(5, 6))
    else:
        packed = _bytes(_bits(codes, _NIBBLES))
    d = fields.d.view(rows // TILE_ROWS, 2, 8, -1).permute(0, 3, 2, 1)[:, order]
    return _joined([packed, _bytes(d)])


def _unpack_one_scale(data: Tensor, *, bits: int) -> BlockFields:
    size = bits * 64
    data = data.view(len(data), -1, size + 32)
    n, blocks = data.shape[:2]
    if bits == 8:
        shape = (n, blocks, 8, 4, 2, 2, 2, 2)
        codes = data[..., :size].reshape(shape).transpose(5, 6).flatten(6)
    else:
        words = _typed(data[..., :size], torch.int32).view(n, blocks, 8, 4, 2)
        codes = _codes(words, _NIBBLES, 4)
    d = _typed(data[..., size:], torch.float16).view(n, blocks, 8, 2)
    back = torch.argsort(_block_order(blocks, data.device))
    codes, d = codes[:, back], d[:, back]
    return BlockFields(
        codes.permute(0, 5, 2, 1, 4, 3, 6).reshape(n * TILE_ROWS, blocks * 32),
        d.permute(0, 3, 2, 1).reshape(n * TILE_ROWS, blocks),
    )


#: The formats of blocks that the kernels multiply.
FRAGMENT_FORMATS = {
    "Q4_K": FragmentFormat(
        BLOCK_COLUMNS["Q4_K"],
        2304,
        lambda fields: _pack_six_bit_scales(fields, has_fifth=False),
        lambda data: _unpack_six_bit_scales(data, has_fifth=False),
    ),
    "Q5_K": FragmentFormat(
        BLOCK_COLUMNS["Q5_K"],
        2816,
        lambda fields: _pack_six_bit_scales(fields, has_fifth=True),
        lambda data: _unpack_six_bit_scales(data, has_fifth=True),
    ),
    "Q6_K": FragmentFormat(BLOCK_COLUMNS["Q6_K"], 3360, _pack_q6_k, _unpack_q6_k),
    "Q8_0": FragmentFormat(
        BLOCK_COLUMNS["Q8_0"],
        544,
        lambda fields: _pack_one_scale(fields, bits=8),
        lambda data: _unpack_one_scale(data, bits=8),
    ),
    "Q4_0": FragmentFormat(
        BLOCK_COLUMNS["Q4_0"],
        288,
        lambda fields: _pack_one_scale(fields, bits=4),
        lambda data: _unpack_one_scale(data, bits=4),
    ),
}
