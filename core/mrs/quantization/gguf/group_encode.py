"""Encode groups of weights: INT with a minimum, FP8 and MXFP4."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mrs.formats import GROUP_SIZES, INT_BITS
from mrs.quantization.gguf.bits import pack_planes
from mrs.quantization.gguf.fp4 import e2m1_values
from mrs.quantization.gguf.grouped import fp8_blocks, int_blocks
from mrs.quantization.gguf.k_encode import Q2_K, Q4_K
from mrs.quantization.gguf.k_search import WithMinimum, group_with_minimum

#: The trials of each number of bits; with 8 bits, the whole range is the best.
_TRIALS = {2: Q2_K.trials, 3: Q4_K.trials, 4: Q4_K.trials, 8: ((0.0, 0.0),)}
_E4M3_MAX = 448.0


def encode_int(
    weights: torch.Tensor, columns: torch.Tensor | None = None, *, bits: int
) -> torch.Tensor:
    """Groups (N, n) by least squares, weighed by the importance of `columns` (N, n) if given."""
    layout = WithMinimum(weights.shape[1], (1 << bits) - 1, 1, _TRIALS[bits])
    scale, minimum, q = group_with_minimum(weights, layout, columns)
    if bits == 8:  # stored codes are signed
        return int_blocks((q - 128).to(torch.int8), scale[:, 0], (minimum + 128 * scale)[:, 0], 8)
    return int_blocks(q.to(torch.uint8), scale[:, 0], minimum[:, 0], bits)


def encode_fp8(weights: torch.Tensor) -> torch.Tensor:
    """Groups (N, n), the largest magnitude of each becoming the largest of type F8_E4M3."""
    scale = weights.abs().amax(1, keepdim=True) / _E4M3_MAX
    values = weights * torch.where(scale == 0, 0.0, 1 / scale)
    codes = values.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return fp8_blocks(codes.view(torch.uint8), scale[:, 0])


def encode_mxfp4(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    """Groups (N, 32): of two exponents, the one with the smaller (weighted) squared error."""
    largest = weights.abs().amax(1, keepdim=True)
    # The larger exponent reaches the largest magnitude (6); the smaller one may clip it.
    least = torch.frexp(largest / 6)[1].clamp(-126, 127)
    table = e2m1_values(torch.arange(16, device=weights.device, dtype=torch.uint8))
    middles = (table[:7] + table[1:8]) / 2
    error = torch.full_like(largest, torch.inf)
    best_codes = torch.zeros(weights.shape, dtype=torch.uint8, device=weights.device)
    best = least
    for exponent in (least, least - 1):
        scale = torch.ldexp(torch.ones_like(largest), exponent)
        codes = torch.bucketize((weights / scale).abs(), middles).to(torch.uint8)
        codes |= (weights < 0).to(torch.uint8) << 3
        lost = (table[codes.long()] * scale - weights).square_()
        lost = (lost if columns is None else lost * columns).sum(1, keepdim=True)
        better = lost < error
        error = torch.where(better, lost, error)
        best_codes = torch.where(better, codes, best_codes)
        best = torch.where(better, exponent, best)
    return torch.cat(((best + 127).to(torch.uint8), pack_planes(best_codes, 16, 4)), 1)


ENCODERS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"INT{bits}_{n}": partial(encode_int, bits=bits) for bits in INT_BITS for n in GROUP_SIZES},
    **dict.fromkeys((f"FP8_{n}" for n in GROUP_SIZES), encode_fp8),
    "MXFP4": encode_mxfp4,
}
