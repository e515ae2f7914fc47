"""Decode ggml's super-blocks of 256 weights: Q2_K to Q6_K, and Q8_K (intermediate results).

A super-block has one float16 scale `d` (and `dmin` if sub-blocks have minima) and small integer
scales for sub-blocks of 16 or 32 weights. Block layouts: ggml's `ggml-common.h`.
"""

from __future__ import annotations

import torch

from mrs.quantization.gguf.bits import half, planes, typed


def _repeated(scales: torch.Tensor, length: int) -> torch.Tensor:
    """Scales of sub-blocks (N, S), each repeated for `length` weights: (N, S * length)."""
    return scales.repeat_interleave(length, 1)


def unpack_scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 6-bit scales and minima of Q4_K and Q5_K: (N, 12) -> (N, 8) and (N, 8), uint8.

    Bytes 0-3: scales 0-3 (low 6 bits) and the upper 2 bits of scales 4-7 (high 2 bits).
    Bytes 4-7: the same of the minima.
    Bytes 8-11: the lower 4 bits of scales 4-7 (low nibble) and of minima 4-7 (high nibble).
    """
    low_scales, low_minima, nibbles = torch.split(packed, 4, 1)
    scales = torch.cat((low_scales & 63, (nibbles & 15) | ((low_scales >> 2) & 48)), 1)
    minima = torch.cat((low_minima & 63, (nibbles >> 4) | ((low_minima >> 2) & 48)), 1)
    return scales, minima


def _scaled_with_minima(
    d: torch.Tensor, scales: torch.Tensor, dmin: torch.Tensor, minima: torch.Tensor, q: torch.Tensor
) -> torch.Tensor:
    length = q.shape[1] // scales.shape[1]
    return _repeated(d * scales.float(), length) * q.float() - _repeated(
        dmin * minima.float(), length
    )


def decode_q2_k(blocks: torch.Tensor) -> torch.Tensor:
    packed, q = blocks[:, :16], planes(blocks[:, 16:80], 32, 2)
    d, dmin = half(blocks[:, 80:82]), half(blocks[:, 82:84])
    return _scaled_with_minima(d, packed & 15, dmin, packed >> 4, q)


def unpack_q3_k_scales(packed: torch.Tensor) -> torch.Tensor:
    """The 6-bit scales of Q3_K, offset by 32: (N, 12) -> (N, 16), uint8.

    Bytes 0-7: the lower 4 bits of scales 0-7 (low nibbles) and 8-15 (high nibbles).
    Bytes 8-11: the upper 2 bits, in planes of four scales.
    """
    return planes(packed[:, :8], 8, 4) | (planes(packed[:, 8:], 4, 2) << 4)


def decode_q3_k(blocks: torch.Tensor) -> torch.Tensor:
    high, low = planes(blocks[:, :32], 32, 1), planes(blocks[:, 32:96], 32, 2)
    scales = unpack_q3_k_scales(blocks[:, 96:108]).float() - 32
    q = (low | (high << 2)).float() - 4
    return _repeated(half(blocks[:, 108:110]) * scales, 16) * q


def decode_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    q = planes(blocks[:, 16:], 32, 4)
    return _scaled_with_minima(half(blocks[:, :2]), scales, half(blocks[:, 2:4]), minima, q)


def decode_q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    q = planes(blocks[:, 48:], 32, 4) | (planes(blocks[:, 16:48], 32, 1) << 4)
    return _scaled_with_minima(half(blocks[:, :2]), scales, half(blocks[:, 2:4]), minima, q)


def decode_q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low, high = planes(blocks[:, :128], 64, 4), planes(blocks[:, 128:192], 32, 2)
    scales = half(blocks[:, 208:210]) * blocks[:, 192:208].view(torch.int8).float()
    return _repeated(scales, 16) * ((low | (high << 4)).float() - 32)


def decode_q8_k(blocks: torch.Tensor) -> torch.Tensor:
    """Ignores the 16 sums at the end of a block, which only dot products use."""
    return typed(blocks[:, :4], torch.float32) * blocks[:, 4:260].view(torch.int8).float()


DECODERS = {
    "Q2_K": decode_q2_k,
    "Q3_K": decode_q3_k,
    "Q4_K": decode_q4_k,
    "Q5_K": decode_q5_k,
    "Q6_K": decode_q6_k,
    "Q8_K": decode_q8_k,
}
