"""The bit fields of blocks, for matrices that store each field in a plane of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mrs.formats import GROUP_SIZES, INT_BITS, Format
from mrs.kernels.triton.bit_planes import BlockFields, PlaneLayout
from mrs.quantization.gguf.bits import fields, planes, typed
from mrs.quantization.gguf.grouped import int_codes
from mrs.quantization.gguf.k_quants import unpack_q3_k_scales, unpack_scales_and_minima

#: The plane layout of each format that has one.
PLANE_LAYOUTS = {
    "Q4_0": PlaneLayout(32, code_bits=4, code_zero=8, has_base=False),
    "Q4_1": PlaneLayout(32, code_bits=4, code_zero=0, has_base=True),
    "Q5_0": PlaneLayout(32, code_bits=5, code_zero=16, has_base=False),
    "Q5_1": PlaneLayout(32, code_bits=5, code_zero=0, has_base=True),
    "Q8_0": PlaneLayout(32, code_bits=8, code_zero=128, has_base=False),
    "Q2_K": PlaneLayout(256, code_bits=2, code_zero=0, has_base=True, sub_block=16, scale_bits=4),
    "Q3_K": PlaneLayout(
        256, code_bits=3, code_zero=4, has_base=False, sub_block=16, scale_bits=6, scale_zero=32
    ),
    "Q4_K": PlaneLayout(256, code_bits=4, code_zero=0, has_base=True, sub_block=32, scale_bits=6),
    "Q5_K": PlaneLayout(256, code_bits=5, code_zero=0, has_base=True, sub_block=32, scale_bits=6),
    "Q6_K": PlaneLayout(
        256, code_bits=6, code_zero=32, has_base=False, sub_block=16, scale_bits=8, scale_zero=128
    ),
    "MXFP4": PlaneLayout(32, code_bits=4, code_zero=0, has_base=False, is_float=True),
    **{
        f"INT{bits}_{n}": PlaneLayout(
            n, code_bits=bits, code_zero=128 if bits == 8 else 0, has_base=True, is_wide=True
        )
        for bits in INT_BITS
        for n in GROUP_SIZES
    },
    **{
        f"FP8_{n}": PlaneLayout(
            n, code_bits=8, code_zero=0, has_base=False, is_wide=True, is_float=True
        )
        for n in GROUP_SIZES
    },
}


def split_blocks(blocks: Tensor, format: Format) -> BlockFields:
    """The fields of rows of blocks, uint8 (N, row_bytes), on the device of `blocks`."""
    split = _SPLITTERS[format.name](blocks.reshape(-1, format.block_bytes))
    return BlockFields._make(
        None if field is None else field.reshape(len(blocks), -1) for field in split
    )


def _half(field: Tensor) -> Tensor:
    return typed(field, torch.float16)


def _unsigned(field: Tensor) -> Tensor:
    """Signed bytes plus 128, as unsigned bytes."""
    return field ^ 0x80


def _five_bits(low: Tensor, high: Tensor) -> Tensor:
    return planes(low, 16, 4) | (fields(high, 8, 1) << 4)


def _q4_0(blocks: Tensor) -> BlockFields:
    return BlockFields(planes(blocks[:, 2:], 16, 4), _half(blocks[:, :2]))


def _q4_1(blocks: Tensor) -> BlockFields:
    return BlockFields(planes(blocks[:, 4:], 16, 4), _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _q5_0(blocks: Tensor) -> BlockFields:
    return BlockFields(_five_bits(blocks[:, 6:], blocks[:, 2:6]), _half(blocks[:, :2]))


def _q5_1(blocks: Tensor) -> BlockFields:
    codes = _five_bits(blocks[:, 8:], blocks[:, 4:8])
    return BlockFields(codes, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _q8_0(blocks: Tensor) -> BlockFields:
    return BlockFields(_unsigned(blocks[:, 2:]), _half(blocks[:, :2]))


def _q2_k(blocks: Tensor) -> BlockFields:
    codes, both = planes(blocks[:, 16:80], 32, 2), blocks[:, :16]
    return BlockFields(
        codes, _half(blocks[:, 80:82]), -_half(blocks[:, 82:84]), both & 15, both >> 4
    )


def _q3_k(blocks: Tensor) -> BlockFields:
    codes = planes(blocks[:, 32:96], 32, 2) | (planes(blocks[:, :32], 32, 1) << 2)
    scales = unpack_q3_k_scales(blocks[:, 96:108])
    return BlockFields(codes, _half(blocks[:, 108:110]), None, scales)


def _q4_k(blocks: Tensor) -> BlockFields:
    return _with_minima(blocks, planes(blocks[:, 16:], 32, 4))


def _q5_k(blocks: Tensor) -> BlockFields:
    low, high = planes(blocks[:, 48:], 32, 4), planes(blocks[:, 16:48], 32, 1)
    return _with_minima(blocks, low | (high << 4))


def _with_minima(blocks: Tensor, codes: Tensor) -> BlockFields:
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    return BlockFields(codes, _half(blocks[:, :2]), -_half(blocks[:, 2:4]), scales, minima)


def _q6_k(blocks: Tensor) -> BlockFields:
    codes = planes(blocks[:, :128], 64, 4) | (planes(blocks[:, 128:192], 32, 2) << 4)
    return BlockFields(codes, _half(blocks[:, 208:210]), None, _unsigned(blocks[:, 192:208]))


def _mxfp4(blocks: Tensor) -> BlockFields:
    return BlockFields(planes(blocks[:, 1:], 16, 4), blocks[:, :1])


def _fp8(blocks: Tensor) -> BlockFields:
    return BlockFields(blocks[:, 4:], typed(blocks[:, :4], torch.float32))


def _int(blocks: Tensor, bits: int) -> BlockFields:
    codes = int_codes(blocks[:, 8:].reshape(-1, 4 * bits), bits).reshape(len(blocks), -1)
    if bits == 8:
        codes = _unsigned(codes.view(torch.uint8))
    head = typed(blocks[:, :8], torch.float32)
    return BlockFields(codes, head[:, :1], head[:, 1:])


_SPLITTERS: dict[str, Callable[[Tensor], BlockFields]] = {
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
    "MXFP4": _mxfp4,
    **{f"INT{bits}_{n}": partial(_int, bits=bits) for bits in INT_BITS for n in GROUP_SIZES},
    **{f"FP8_{n}": _fp8 for n in GROUP_SIZES},
}
