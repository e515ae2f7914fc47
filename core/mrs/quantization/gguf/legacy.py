"""ggml's blocks of 32 weights with one float16 scale: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

`_0` blocks are symmetric (`scale * q`), `_1` blocks add a minimum (`scale * q + minimum`).
Codes 0-15 of a block are the low nibbles of its bytes, codes 16-31 the high nibbles. The fifth
bits of Q5 codes are a little-endian 32-bit word. Block layouts: ggml's `ggml-common.h`.
"""

from __future__ import annotations

import torch

from mrs.quantization.gguf.bits import bytes_of, fields, half, pack_planes, planes
from mrs.quantization.gguf.k_encode import Q4_K, Q5_K
from mrs.quantization.gguf.k_search import Symmetric, block_symmetric, block_with_minimum

#: Ranges that are tried if the importance of columns is known.
_TRIALS = (-0.6, -0.2, 0.2, 0.6, 1.0, 1.5, 2.0, 2.5)


def decode_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    q = planes(blocks[:, 2:], 16, 4).float() - 8
    return half(blocks[:, :2]) * q


def decode_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    q = planes(blocks[:, 4:], 16, 4).float()
    return half(blocks[:, :2]) * q + half(blocks[:, 2:4])


def _five_bits(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return (planes(low, 16, 4) | (fields(high, 8, 1) << 4)).float()


def decode_q5_0(blocks: torch.Tensor) -> torch.Tensor:
    q = _five_bits(blocks[:, 6:], blocks[:, 2:6]) - 16
    return half(blocks[:, :2]) * q


def decode_q5_1(blocks: torch.Tensor) -> torch.Tensor:
    q = _five_bits(blocks[:, 8:], blocks[:, 4:8])
    return half(blocks[:, :2]) * q + half(blocks[:, 2:4])


def decode_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks[:, :2]) * blocks[:, 2:].view(torch.int8).float()


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _symmetric(
    weights: torch.Tensor, levels: int, columns: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale (N, 1) and q (N, 32).

    Without the importance of `columns` (N, 32), the weight of largest magnitude becomes exactly
    `-levels`.
    """
    if columns is not None:
        return block_symmetric(weights, Symmetric(32, levels, 1, _TRIALS), columns)
    largest = weights.gather(1, weights.abs().argmax(1, keepdim=True))
    scale = largest / -levels
    # Adding 0.5 before truncating rounds ties up, as ggml does; sums are never negative.
    q = (weights * _inverse(scale) + (levels + 0.5)).clamp_(0, 2 * levels - 1)
    return scale, q.to(torch.uint8)


def _with_minimum(
    weights: torch.Tensor, levels: int, columns: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale (N, 1), minimum (N, 1) and q (N, 32) in 0..levels."""
    if columns is not None:
        return block_with_minimum(weights, Q4_K if levels == 15 else Q5_K, columns)
    minimum, maximum = weights.aminmax(dim=1, keepdim=True)
    scale = (maximum - minimum) / levels
    q = ((weights - minimum) * _inverse(scale) + 0.5).clamp_(0, levels)
    return scale, minimum, q.to(torch.uint8)


def _float16_bytes(values: torch.Tensor) -> torch.Tensor:
    return bytes_of(values.half())


def _fifth_bits(q: torch.Tensor) -> torch.Tensor:
    """Bit 4 of 32 codes as four bytes: (N, 32) -> (N, 4)."""
    bits = (q >> 4).view(len(q), 4, 8) << torch.arange(8, device=q.device, dtype=q.dtype)
    return bits.sum(2, dtype=torch.uint8)


def encode_q4_0(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    scale, q = _symmetric(weights, 8, columns)
    return torch.cat((_float16_bytes(scale), pack_planes(q, 16, 4)), 1)


def encode_q4_1(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    scale, minimum, q = _with_minimum(weights, 15, columns)
    return torch.cat((_float16_bytes(scale), _float16_bytes(minimum), pack_planes(q, 16, 4)), 1)


def encode_q5_0(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    scale, q = _symmetric(weights, 16, columns)
    return torch.cat((_float16_bytes(scale), _fifth_bits(q), pack_planes(q & 15, 16, 4)), 1)


def encode_q5_1(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    scale, minimum, q = _with_minimum(weights, 31, columns)
    head = (_float16_bytes(scale), _float16_bytes(minimum))
    return torch.cat((*head, _fifth_bits(q), pack_planes(q & 15, 16, 4)), 1)


def encode_q8_0(weights: torch.Tensor) -> torch.Tensor:
    scale = weights.abs().amax(1, keepdim=True) / 127
    scaled = weights * _inverse(scale)
    # Ties are rounded away from zero; torch.round would round them to even.
    truncated = scaled.trunc()
    q = truncated + ((scaled - truncated) * 2).trunc()
    return torch.cat((_float16_bytes(scale), bytes_of(q.to(torch.int8))), 1)


DECODERS = {
    "Q4_0": decode_q4_0,
    "Q4_1": decode_q4_1,
    "Q5_0": decode_q5_0,
    "Q5_1": decode_q5_1,
    "Q8_0": decode_q8_0,
}

ENCODERS = {
    "Q4_0": encode_q4_0,
    "Q4_1": encode_q4_1,
    "Q5_0": encode_q5_0,
    "Q5_1": encode_q5_1,
    "Q8_0": encode_q8_0,
}
