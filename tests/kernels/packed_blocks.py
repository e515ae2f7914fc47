"""Blocks of weights for tests, with values that gguf-py decodes."""

from __future__ import annotations

import gguf
import numpy as np
import torch
from torch import Tensor

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

FLOAT_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
#: Formats of this project, without codes that are not a number.
_GROUPED = tuple(GROUPED_DECODERS)


def random_blocks(name: str, rows: int, columns: int, seed: int = 0, scale: float = 1e-3) -> Tensor:
    """uint8 (rows, row_bytes): random codes, and scales between `scale` and twice that."""
    generator = np.random.default_rng(seed)
    if name in FLOAT_DTYPES:
        values = torch.from_numpy(generator.standard_normal((rows, columns)).astype(np.float32))
        return values.to(FLOAT_DTYPES[name]).view(torch.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = generator.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for place in _HALVES[name]:
        halves = generator.uniform(scale, 2 * scale, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = halves[..., None].view(np.uint8)
    return torch.from_numpy(blocks.reshape(rows, -1))


def same_bytes(name: str, rows: int, columns: int, codes: int, half: int) -> Tensor:
    """Blocks whose every byte is `codes` and whose every f16 has the bits `half`."""
    blocks = random_blocks(name, rows, columns).numpy()
    blocks[:] = codes
    if name in FLOAT_DTYPES:
        return torch.full((rows, columns), half, dtype=torch.int16).view(torch.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    split = blocks.reshape(rows, columns // elements, size)
    for place in _HALVES[name]:
        split[..., place : place + 2] = np.array([half], np.uint16).view(np.uint8)
    return torch.from_numpy(split.reshape(rows, -1))


def reference_values(name: str, blocks: Tensor) -> Tensor:
    """What gguf-py says the blocks mean: float32 (rows, columns)."""
    if name in FLOAT_DTYPES:
        return blocks.view(FLOAT_DTYPES[name]).float()
    return torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[name]))
