"""Tensors of quantized weights, made from the documented layouts, and the values they stand for.

Each packer takes a random generator and the shape (rows, columns) of a weight; it returns the
tensors by the suffix of their names, and the values in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tensors = dict[str, Tensor]
Packed = tuple[Tensors, NDArray[np.float64]]
Generator = np.random.Generator
Codes = NDArray[np.int64]
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


@dataclass(frozen=True)
class Scheme:
    """A way to quantize: the config, and what packs one weight. `label` is what a plan says."""

    id: str
    config: dict[str, Any]
    pack: Callable[[Generator, int, int], Packed]
    label: str


def stream(codes: Codes, bits: int) -> NDArray[np.int32]:
    """Words of 32 bits from values (N, n) along the last axis, bit by bit, lowest bits first."""
    found = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(len(codes), -1)
    found = np.pad(found, ((0, 0), (0, -found.shape[1] % 32)))
    return np.packbits(found, axis=1, bitorder="little").view("<i4")


def scales_of(rng: Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(rng.uniform(0.01, 0.03, shape)).to(dtype)


def exact(values: Tensor) -> NDArray[np.float64]:
    return values.double().numpy()


def tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def gptq(bits: int, size: int, *, sym: bool, v2: bool = False, order: bool = False) -> Any:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        each = columns if size == -1 else size
        groups = -(-columns // each)
        codes = rng.integers(0, 1 << bits, (rows, columns))
        zeros = rng.integers(0, 1 << bits, (rows, groups))
        zeros = np.full_like(zeros, 1 << bits - 1) if sym else zeros
        scales = scales_of(rng, (groups, rows), torch.float16)
        index = np.arange(columns) // each
        index = rng.permutation(index) if order else index
        stored = zeros if v2 else zeros - 1 & (1 << bits) - 1
        tensors = {
            ".qweight": tensor(stream(codes, bits).T),
            ".qzeros": tensor(stream(stored.T, bits)),
            ".scales": scales,
            ".g_idx": tensor(index.astype(np.int32)),
        }
        return tensors, exact(scales).T[:, index] * (codes - zeros[:, index])

    return pack


def awq(size: int) -> Any:
    def shuffled(codes: Codes) -> NDArray[np.int32]:
        eights = codes.reshape(len(codes), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return stream(eights.reshape(len(codes), -1), 4)

    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        codes = rng.integers(0, 16, (columns, rows))
        zeros = rng.integers(0, 16, (columns // size, rows))
        scales = scales_of(rng, zeros.shape, torch.float16)
        tensors = {
            ".qweight": tensor(shuffled(codes)),
            ".qzeros": tensor(shuffled(zeros)),
            ".scales": scales,
        }
        index = np.arange(columns) // size
        return tensors, (exact(scales)[index] * (codes - zeros[index])).T

    return pack


def packed_ints(
    bits: int, size: int, *, zeros: bool = False, order: bool = False, dtype: Any = torch.bfloat16
) -> Any:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        each, half = columns if size == -1 else size, 1 << bits - 1
        groups = columns // each
        codes = rng.integers(-half, half, (rows, columns))
        zero = rng.integers(-half, half, (rows, groups)) if zeros else np.zeros((rows, groups), int)
        scales = scales_of(rng, (rows, groups), dtype)
        index = np.arange(columns) // each
        index = rng.permutation(index) if order else index
        tensors = {
            ".weight_packed": tensor(stream(codes + half, bits)),
            ".weight_scale": scales,
            ".weight_shape": torch.tensor([rows, columns]),
        }
        if zeros:
            tensors[".weight_zero_point"] = tensor(stream((zero + half).T, bits).T)
        if order:
            tensors[".weight_g_idx"] = tensor(index.astype(np.int32))
        return tensors, exact(scales)[:, index] * (codes - zero[:, index])

    return pack


def plain_ints(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    scales = scales_of(rng, (rows, 1), torch.bfloat16) / 8
    return {".weight": tensor(codes), ".weight_scale": scales}, exact(scales) * codes


def float8(suffix: str, kind: str, dtype: torch.dtype = torch.float32) -> Any:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        codes = torch.from_numpy(rng.normal(0, 40, (rows, columns))).float()
        codes = codes.to(torch.float8_e4m3fn)
        tiles = {"tensor": (), "row": (rows, 1), "tile": (-(-rows // 128), -(-columns // 128))}
        scales = scales_of(rng, tiles[kind], dtype) / 32
        spread = exact(scales)
        if kind == "tile":
            spread = spread.repeat(128, 0).repeat(128, 1)[:rows, :columns]
        return {".weight": codes, suffix: scales}, exact(codes.float()) * spread

    return pack


#: The values of bitsandbytes' 4 bits by the name of their kind.
TABLES = {
    "nf4": [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
            -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
            0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
            0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1],
    "fp4": [0, 0.00520833, 0.6666667, 1, 0.3333333, 0.5, 0.1666667, 0.25,
            0, -0.00520833, -0.6666667, -1, -0.3333333, -0.5, -0.1666667, -0.25],
}  # fmt: skip


def table4(kind: str, *, is_nested: bool) -> Any:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        codes = rng.integers(0, 16, rows * columns)
        table = np.array(TABLES[kind], np.float32)
        blocks = len(codes) // 64
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "shape": [rows, columns]}
        tensors = {
            ".weight": tensor((codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None]),
            ".weight.quant_map": tensor(table),
        }
        if is_nested:
            stored = rng.integers(0, 256, blocks).astype(np.uint8)
            outer_table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            outer = rng.uniform(0.01, 0.02, -(-blocks // 256)).astype(np.float32)
            state |= {"nested_blocksize": 256, "nested_offset": 0.05}
            tensors[".weight.absmax"] = tensor(stored)
            tensors[".weight.nested_absmax"] = tensor(outer)
            tensors[".weight.nested_quant_map"] = tensor(outer_table)
            largest = outer_table[stored].astype(float) * outer.repeat(256)[:blocks] + 0.05
        else:
            largest = rng.uniform(0.05, 0.1, blocks).astype(np.float32).astype(float)
            tensors[".weight.absmax"] = tensor(largest.astype(np.float32))
        text = json.dumps(state).encode()
        state_name = f".weight.quant_state.bitsandbytes__{kind}"
        tensors[state_name] = tensor(np.frombuffer(text, np.uint8).copy())
        return tensors, (table[codes] * largest.repeat(64)).reshape(rows, columns)

    return pack


def row_ints(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    largest = scales_of(rng, (rows,), torch.float32) * 8
    tensors = {
        ".weight": tensor(codes),
        ".SCB": largest,
        ".weight_format": torch.zeros((), dtype=torch.uint8),
    }
    return tensors, codes * exact(largest)[:, None] / 127


def hqq(bits: int, size: int) -> Any:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        groups, parts = rows * columns // size, 8 // bits
        codes = rng.integers(0, 1 << bits, (groups, size))
        packed = np.zeros((groups // parts, size), np.uint8)
        for part, some in enumerate(np.split(codes, parts)):
            packed |= (some << 8 - bits * (part + 1)).astype(np.uint8)
        scales = scales_of(rng, (groups, 1), torch.float16)
        zeros = torch.from_numpy(rng.uniform(0, 1 << bits, (groups, 1))).half()
        tensors = {
            ".W_q": tensor(packed),
            ".scale": scales,
            ".zero": zeros,
            ".nbits": torch.tensor([bits], dtype=torch.int32),
            ".shape": torch.tensor([rows, columns], dtype=torch.int32),
        }
        return tensors, ((codes - exact(zeros)) * exact(scales)).reshape(rows, columns)

    return pack


def mlx(bits: int, size: int, dtype: torch.dtype) -> Any:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        codes = rng.integers(0, 1 << bits, (rows, columns))
        scales = scales_of(rng, (rows, columns // size), dtype)
        biases = -scales * (1 << bits - 1)
        words = stream(codes, bits).view(np.uint32)
        tensors = {".weight": tensor(words), ".scales": scales, ".biases": biases}
        index = np.arange(columns) // size
        return tensors, exact(scales)[:, index] * codes + exact(biases)[:, index]

    return pack


def mlx_mxfp4(rng: Generator, rows: int, columns: int) -> Packed:
    tensors, values = mxfp4(rng, rows, columns)
    words = tensor(tensors[".weight_packed"].numpy().view("<u4"))
    return {".weight": words, ".scales": tensors[".weight_scale"]}, values


def nvfp4(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(0, 16, (rows, columns))
    scales = torch.from_numpy(rng.uniform(1, 2, (rows, columns // 16))).to(torch.float8_e4m3fn)
    tensors = {
        ".weight_packed": tensor((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        ".weight_scale": scales,
        ".weight_global_scale": torch.tensor([64.0]),
    }
    return tensors, np.array(FP4)[codes] * exact(scales.float()).repeat(16, 1) / 64


def mxfp4(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(0, 16, (rows, columns))
    exponents = rng.integers(118, 122, (rows, columns // 32)).astype(np.uint8)
    tensors = {
        ".weight_packed": tensor((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        ".weight_scale": tensor(exponents),
    }
    return tensors, np.array(FP4)[codes] * 2.0 ** (exponents.repeat(32, 1) - 127.0)
