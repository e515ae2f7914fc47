"""Random layers of every kind of UQFF, as numpy makes them, and the values that they stand for.

Names of tensors are those after `K.weight`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from packers import FP4, exact, scales_of, stream, tensor
from torch import Tensor

Packed = tuple[dict[str, Tensor], Any]
Pack = Callable[[Generator, int, int], Packed]


def scalar(value: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def sizes(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint32)


def gguf(name: str) -> Pack:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize, quantize

        kind = GGMLQuantizationType[name]
        blocks = quantize(rng.normal(0, 0.05, (rows, columns)).astype(np.float32), kind)
        tensors = {
            "": tensor(blocks.reshape(-1)),
            ".format": scalar(0),
            ".dtype": scalar(int(kind), torch.uint32),
            ".shape": sizes(rows, columns),
        }
        return tensors, dequantize(blocks, kind).astype(np.float64)

    return pack


def q8_1(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(-128, 128, (rows, columns // 32, 32))
    scales = rng.uniform(1e-4, 1e-3, (rows, columns // 32, 1)).astype(np.float16)
    sums = (codes.sum(-1, keepdims=True) * scales).astype(np.float16)
    parts = [scales.view(np.uint8), sums.view(np.uint8), codes.astype(np.int8).view(np.uint8)]
    tensors = {
        "": tensor(np.concatenate(parts, -1).reshape(-1)),
        ".format": scalar(0),
        ".dtype": scalar(9, torch.uint32),
        ".shape": sizes(rows, columns),
    }
    return tensors, (codes * scales.astype(np.float64)).reshape(rows, columns)


def plain(rng: Generator, rows: int, columns: int) -> Packed:
    values = torch.from_numpy(rng.normal(0, 0.05, (rows, columns))).bfloat16()
    return {"": values, ".format": scalar(1)}, exact(values.float())


def hqq(bits: int) -> Pack:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        groups, parts = rows * columns // 64, 8 // bits
        codes = rng.integers(0, 1 << bits, (64, groups))
        packed = np.zeros((64 // parts, groups), np.uint8)
        for part, some in enumerate(np.split(codes, parts)):
            packed |= (some << 8 - bits * (part + 1)).astype(np.uint8)
        scales = scales_of(rng, (1, groups), torch.float32)
        zeros = torch.from_numpy(rng.uniform(0, 1 << bits, (1, groups))).float()
        tensors = {
            "": tensor(packed),
            ".format": scalar(2),
            ".scales": scales,
            ".zeros": zeros,
            ".shape": sizes(rows, columns),
            ".bits": scalar(bits),
            ".group_size": scalar(64, torch.uint32),
            ".axis": scalar(0),
            ".optimization_steps": scalar(10, torch.uint32),
            ".round_zeros": scalar(0),
            ".channel_wise": scalar(1),
        }
        return tensors, ((codes - exact(zeros)) * exact(scales)).reshape(rows, columns)

    return pack


def fp8(rng: Generator, rows: int, columns: int) -> Packed:
    values = torch.from_numpy(rng.normal(0, 40, (rows, columns))).to(torch.float8_e4m3fn)
    scale = 0.001
    tensors = {
        "": values,
        ".format": scalar(3),
        ".dequant_w_scale": torch.tensor(scale),
        ".dequant_x_scale": torch.tensor(scale),
        ".quant_scale": torch.tensor(1 / scale),
        ".dtype": scalar(9, torch.uint32),
    }
    return tensors, exact(values.float()) * exact(torch.tensor(scale))


def afq(bits: int, dtype: torch.dtype) -> Pack:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        codes = rng.integers(0, 1 << bits, (rows, columns))
        scales = scales_of(rng, (rows, columns // 64), dtype)
        biases = -scales * (1 << bits - 1)
        tensors = {
            "": tensor(stream(codes, bits).view(np.uint32)),
            ".format": scalar(4),
            ".bits": scalar(bits),
            ".group_size": scalar(64),
            ".scales": scales,
            ".biases": biases,
        }
        index = np.arange(columns) // 64
        return tensors, exact(scales)[:, index] * codes + exact(biases)[:, index]

    return pack


def f8q8(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(-127, 128, (rows, columns // 32, 32))
    scales = torch.from_numpy(rng.uniform(0.05, 0.5, (rows, columns // 32, 1)))
    stored = scales.to(torch.float8_e4m3fn)
    parts = [stored.view(torch.uint8).numpy(), codes.astype(np.int8).view(np.uint8)]
    tensors = {
        "": tensor(np.concatenate(parts, -1).reshape(-1)),
        ".format": scalar(5),
        ".shape": sizes(rows, columns),
        ".num_blocks": scalar(rows * columns // 32, torch.uint32),
    }
    return tensors, (codes * exact(stored.float()) / 416).reshape(rows, columns)


def mxfp4(rng: Generator, rows: int, columns: int) -> Packed:
    codes = rng.integers(0, 16, (rows, columns))
    exponents = rng.integers(118, 122, (rows, columns // 32)).astype(np.uint8)
    tensors = {
        "": tensor((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        ".format": scalar(6),
        ".scales": tensor(exponents),
    }
    return tensors, np.array(FP4)[codes] * 2.0 ** (exponents.repeat(32, 1) - 127.0)


#: By the words with which a plan describes the weights.
KINDS: dict[str, Pack] = {
    "Q4_0": gguf("Q4_0"),
    "Q8_0": gguf("Q8_0"),
    "Q8_1": q8_1,
    "BF16": plain,
    "HQQ 4-bit": hqq(4),
    "HQQ 8-bit": hqq(8),
    "FP8": fp8,
    "AFQ 3-bit": afq(3, torch.bfloat16),
    "AFQ 4-bit": afq(4, torch.float16),
    "AFQ 8-bit": afq(8, torch.float32),
    "F8Q8": f8q8,
    "MXFP4": mxfp4,
}
