"""Encode ggml's super-blocks of 256 weights, Q2_K to Q6_K: search scales, then pack."""

from __future__ import annotations

import torch

from mrs.quantization.gguf.bits import bytes_of, pack_planes
from mrs.quantization.gguf.k_search import (
    Fit,
    Symmetric,
    WithMinimum,
    search_symmetric,
    search_with_minimum,
)

Q2_K = WithMinimum(
    sub_block=16,
    levels=3,
    scale_levels=15,
    trials=((0.3, 0.3), (0, 0.45), (0.3, 0), (-0.6, 0.45), (0, 0.15), (0.45, -0.15)),
)
Q4_K = WithMinimum(
    sub_block=32,
    levels=15,
    scale_levels=63,
    trials=(
        *((0, 0), (-0.75, 0.25), (-0.25, 0.25), (0.25, -0.25)),
        *((0.25, 0.5), (0.25, 0), (0, 0.25), (0, -1)),
    ),
)
Q5_K = WithMinimum(
    sub_block=32,
    levels=31,
    scale_levels=63,
    trials=(
        *((0, 0), (0.25, -0.75), (0.25, -0.25), (-0.25, 0.25)),
        *((-1, -1), (0, -1), (0.5, 0.25), (-0.25, 0)),
    ),
)
_Q3_K = Symmetric(16, 4, 32, trials=(-0.06, 0.81, -0.44, 0.25, 1.0))
_Q6_K = Symmetric(16, 32, 128, trials=(0, 1, 2, 3, 3.88))


def _minima(fit: Fit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(d, dmin) as bytes (N, 2), scales and minima as uint8 (N, S)."""
    assert fit.minima is not None
    assert fit.dmin is not None
    scales, minima = fit.scales.to(torch.uint8), fit.minima.to(torch.uint8)
    return bytes_of(fit.d), bytes_of(fit.dmin), scales, minima


def _pack_scales_and_minima(scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
    """The inverse of `k_quants.unpack_scales_and_minima`: (N, 8) twice -> (N, 12)."""
    packed = [six_bits[:, :4] | (six_bits[:, 4:] >> 4 << 6) for six_bits in (scales, minima)]
    return torch.cat((*packed, (scales[:, 4:] & 15) | (minima[:, 4:] << 4)), 1)


def encode_q2_k(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    fit = search_with_minimum(weights, Q2_K, columns)
    d, dmin, scales, minima = _minima(fit)
    return torch.cat((scales | (minima << 4), pack_planes(fit.q, 32, 2), d, dmin), 1)


def encode_q3_k(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    fit = search_symmetric(weights, _Q3_K, columns)
    scales = (fit.scales + 32).to(torch.uint8)
    codes = (pack_planes(fit.q >> 2, 32, 1), pack_planes(fit.q & 3, 32, 2))
    packed = (pack_planes(scales & 15, 8, 4), pack_planes(scales >> 4, 4, 2))
    return torch.cat((*codes, *packed, bytes_of(fit.d)), 1)


def encode_q4_k(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    fit = search_with_minimum(weights, Q4_K, columns)
    d, dmin, *scales_and_minima = _minima(fit)
    return torch.cat(
        (d, dmin, _pack_scales_and_minima(*scales_and_minima), pack_planes(fit.q, 32, 4)), 1
    )


def encode_q5_k(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    fit = search_with_minimum(weights, Q5_K, columns)
    d, dmin, *scales_and_minima = _minima(fit)
    codes = (pack_planes(fit.q >> 4, 32, 1), pack_planes(fit.q & 15, 32, 4))
    return torch.cat((d, dmin, _pack_scales_and_minima(*scales_and_minima), *codes), 1)


def encode_q6_k(weights: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
    fit = search_symmetric(weights, _Q6_K, columns)
    codes = (pack_planes(fit.q & 15, 64, 4), pack_planes(fit.q >> 4, 32, 2))
    return torch.cat((*codes, bytes_of(fit.scales.to(torch.int8)), bytes_of(fit.d)), 1)


ENCODERS = {
    "Q2_K": encode_q2_k,
    "Q3_K": encode_q3_k,
    "Q4_K": encode_q4_k,
    "Q5_K": encode_q5_k,
    "Q6_K": encode_q6_k,
}
