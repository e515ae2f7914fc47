"""Blocks of weights for tests, with values that gguf-py decodes."""

from __future__ import annotations

import gguf
import numpy as np
import torch
from torch import Tensor

from mrs.formats import FORMATS, GROUP_SIZES

#: Where each format keeps its f16 scale and, if it has one, its f16 minimum.
_HALVES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}

FLOAT_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
#: Formats that are multiplied without codes of activations.
EXACT = (*FLOAT_DTYPES, *(f"{kind}_{size}" for kind in ("FP8", "NF4") for size in GROUP_SIZES))


def random_blocks(name: str, rows: int, columns: int, seed: int = 0, scale: float = 1e-3) -> Tensor:
    """uint8 (rows, row_bytes): random codes, and scales between `scale` and twice that."""
    generator = np.random.default_rng(seed)
    if name in FLOAT_DTYPES:
        values = torch.from_numpy(generator.standard_normal((rows, columns)).astype(np.float32))
        return values.to(FLOAT_DTYPES[name]).view(torch.uint8)
    elements, size = FORMATS[name].block_elements, FORMATS[name].block_bytes
    blocks = generator.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for place in _HALVES.get(name, ()):
        halves = generator.uniform(scale, 2 * scale, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = halves[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = generator.integers(117, 119, blocks.shape[:2])
    for place in _float_places(name):
        floats = generator.uniform(scale, 2 * scale, blocks.shape[:2]) * (-3 if place else 1)
        blocks[..., place : place + 4] = floats.astype("<f4")[..., None].view(np.uint8)
    if name.startswith("FP8"):
        codes = blocks[..., 4:]
        codes[codes & 0x7F == 0x7F] ^= 1  # not a number
    return torch.from_numpy(blocks.reshape(rows, -1))


def _float_places(name: str) -> tuple[int, ...]:
    """Where a grouped format keeps its scale and, if it has one, its minimum."""
    return (0, 4) if name.startswith("INT") else (0,) if name.startswith(("FP8", "NF4")) else ()


def same_bytes(name: str, rows: int, columns: int, codes: int, half: int) -> Tensor:
    """Blocks whose every byte is `codes` and whose every f16 has the bits `half`."""
    blocks = random_blocks(name, rows, columns).numpy()
    blocks[:] = codes
    if name == "F32":
        value = float(np.array([half], np.uint16).view(np.float16)[0])
        return torch.full((rows, columns), value).view(torch.uint8)
    if name in FLOAT_DTYPES:
        return torch.full((rows, columns), half, dtype=torch.int16).view(torch.uint8)
    elements, size = FORMATS[name].block_elements, FORMATS[name].block_bytes
    split = blocks.reshape(rows, columns // elements, size)
    for place in _HALVES.get(name, ()):
        split[..., place : place + 2] = np.array([half], np.uint16).view(np.uint8)
    for place in _float_places(name):
        value = np.array([half], np.uint16).view(np.float16).astype("<f4")
        value *= 0.5 if place else 1  # a minimum that makes no weight zero
        split[..., place : place + 4] = value.view(np.uint8)
    if name == "MXFP4":
        split[..., 0] = {0x0001: 2, 0x03FF: 100, 0x7BFF: 140}[half]
    if name.startswith("FP8") and codes & 0x7F == 0x7F:
        split[..., 4:] = codes ^ 1
    return torch.from_numpy(split.reshape(rows, -1))


def reference_values(name: str, blocks: Tensor) -> Tensor:
    """What gguf-py says the blocks mean: float32 (rows, columns)."""
    if name in FLOAT_DTYPES:
        return blocks.view(FLOAT_DTYPES[name]).float()
    if name.startswith("INT"):
        return _int_values(name, blocks)
    if name.startswith("NF4"):
        return _nf4_values(name, blocks)
    if name.startswith("FP8"):
        split = blocks.reshape(len(blocks), -1, FORMATS[name].block_bytes)
        scales = split[..., :4].contiguous().view(torch.float32)
        return (split[..., 4:].contiguous().view(torch.float8_e4m3fn).float() * scales).flatten(1)
    return torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[name]))


def _nf4_values(name: str, blocks: Tensor) -> Tensor:
    """Values of NF4 by the table of Hugging Face's documentation of bitsandbytes."""
    table = np.array([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534,
        0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
        0.5626170039176941, 0.7229568362236023, 1], np.float32)  # fmt: skip
    size = FORMATS[name].block_elements
    split = blocks.numpy().reshape(len(blocks), -1, 4 + size // 2)
    packed = split[..., 4:].reshape(*split.shape[:2], -1, 1, 16)
    codes = np.concatenate((packed & 15, packed >> 4), 3).reshape(*split.shape[:2], size)
    values = table[codes] * split[..., :4].copy().view("<f4")
    return torch.from_numpy(values.reshape(len(blocks), -1))


def _int_values(name: str, blocks: Tensor) -> Tensor:
    """Values of an INT format, bit by bit as `quantization/gguf/grouped.py` describes the codes."""
    bits, size = (int(part) for part in name.removeprefix("INT").split("_"))
    split = blocks.numpy().reshape(len(blocks), -1, 8 + size * bits // 8)
    head = split[..., :8].copy().view("<f4")
    codes = np.zeros((*split.shape[:2], size), np.float32)
    for column in range(size):
        unit, j = divmod(column, 32)
        byte = split[..., 8 + unit * 4 * bits :]
        if bits == 8:
            codes[..., column] = byte[..., j].view(np.int8)
        elif bits == 4:
            codes[..., column] = byte[..., j % 16] >> 4 * (j // 16) & 15
        else:
            codes[..., column] = byte[..., j % 8] >> 2 * (j // 8) & 3
        if bits == 3:
            codes[..., column] += 4 * (byte[..., 8 + j % 4] >> j // 4 & 1)
    values = codes * head[..., :1] + head[..., 1:]
    return torch.from_numpy(values.reshape(len(blocks), -1))
