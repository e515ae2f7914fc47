"""The separate numbers of ggml's blocks, for matrices that keep each kind in a plane of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.formats import Format
from mrs.kernels.triton.bit_planes import Fields, PlaneLayout
from mrs.quants.bits import fields, planes, typed
from mrs.quants.k_quants import unpack_q3_k_scales, unpack_scales_and_minima

#: How each format that can be laid out in planes makes weights of its numbers.
PLANE_LAYOUTS = {
    "Q4_0": PlaneLayout(32, code_bits=4, code_zero=8, has_base=False),
    "Q4_1": PlaneLayout(32, code_bits=4, code_zero=0, has_base=True),
    "Q5_0": PlaneLayout(32, code_bits=5, code_zero=16, has_base=False),
    "Q5_1": PlaneLayout(32, code_bits=5, code_zero=0, has_base=True),
    "Q8_0": PlaneLayout(32, code_bits=8, code_zero=128, has_base=False),
    "Q2_K": PlaneLayout(256, code_bits=2, code_zero=0, has_base=True, run=16, scale_bits=4),
    "Q3_K": PlaneLayout(
        256, code_bits=3, code_zero=4, has_base=False, run=16, scale_bits=6, scale_zero=32
    ),
    "Q4_K": PlaneLayout(256, code_bits=4, code_zero=0, has_base=True, run=32, scale_bits=6),
    "Q5_K": PlaneLayout(256, code_bits=5, code_zero=0, has_base=True, run=32, scale_bits=6),
    "Q6_K": PlaneLayout(
        256, code_bits=6, code_zero=32, has_base=False, run=16, scale_bits=8, scale_zero=128
    ),
}


def split_blocks(blocks: Tensor, format: Format) -> Fields:
    """The numbers of rows of blocks, uint8 (N, row_bytes), on the device where they lie."""
    split = _SPLITTERS[format.name](blocks.reshape(-1, format.block_bytes))
    return Fields(*(None if part is None else part.reshape(len(blocks), -1) for part in split))  # type: ignore[arg-type]


def _half(field: Tensor) -> Tensor:
    return typed(field, torch.float16)


def _unsigned(field: Tensor) -> Tensor:
    """Signed bytes, 128 more."""
    return field ^ 0x80


def _five_bits(low: Tensor, high: Tensor) -> Tensor:
    return planes(low, 16, 4) | (fields(high, 8, 1) << 4)


def _q4_0(blocks: Tensor) -> Fields:
    return Fields(planes(blocks[:, 2:], 16, 4), _half(blocks[:, :2]))


def _q4_1(blocks: Tensor) -> Fields:
    return Fields(planes(blocks[:, 4:], 16, 4), _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _q5_0(blocks: Tensor) -> Fields:
    return Fields(_five_bits(blocks[:, 6:], blocks[:, 2:6]), _half(blocks[:, :2]))


def _q5_1(blocks: Tensor) -> Fields:
    codes = _five_bits(blocks[:, 8:], blocks[:, 4:8])
    return Fields(codes, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _q8_0(blocks: Tensor) -> Fields:
    return Fields(_unsigned(blocks[:, 2:]), _half(blocks[:, :2]))


def _q2_k(blocks: Tensor) -> Fields:
    codes, both = planes(blocks[:, 16:80], 32, 2), blocks[:, :16]
    return Fields(codes, _half(blocks[:, 80:82]), -_half(blocks[:, 82:84]), both & 15, both >> 4)


def _q3_k(blocks: Tensor) -> Fields:
    codes = planes(blocks[:, 32:96], 32, 2) | (planes(blocks[:, :32], 32, 1) << 2)
    scales = unpack_q3_k_scales(blocks[:, 96:108])
    return Fields(codes, _half(blocks[:, 108:110]), None, scales)


def _q4_k(blocks: Tensor) -> Fields:
    return _with_minima(blocks, planes(blocks[:, 16:], 32, 4))


def _q5_k(blocks: Tensor) -> Fields:
    low, high = planes(blocks[:, 48:], 32, 4), planes(blocks[:, 16:48], 32, 1)
    return _with_minima(blocks, low | (high << 4))


def _with_minima(blocks: Tensor, codes: Tensor) -> Fields:
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    return Fields(codes, _half(blocks[:, :2]), -_half(blocks[:, 2:4]), scales, minima)


def _q6_k(blocks: Tensor) -> Fields:
    codes = planes(blocks[:, :128], 64, 4) | (planes(blocks[:, 128:192], 32, 2) << 4)
    return Fields(codes, _half(blocks[:, 208:210]), None, _unsigned(blocks[:, 192:208]))


_SPLITTERS: dict[str, Callable[[Tensor], Fields]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
