"""Decode 4-bit floats (e2m1) with shared scales: MXFP4 and NVFP4.

An e2m1 code is a sign bit and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 (OCP Microscaling Formats 1.0).
As in ggml, the table has twice these values, as integers, and the scale includes the factor 0.5.
"""

from __future__ import annotations

import torch

from mrs.quantization.gguf.bits import planes

_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _doubled_values(codes: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(_DOUBLED, device=codes.device, dtype=torch.float32)
    return table[codes.long()]


def e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    """The values of codes, uint8, in float32."""
    return _doubled_values(codes) / 2


def _half_power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """`2**(e - 128)` of e8m0 bytes as float32; subnormal for e < 2."""
    e = exponents.int()
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1) << 23)
    return bits.view(torch.float32)


def _half_e4m3(scales: torch.Tensor) -> torch.Tensor:
    """Half the value of unsigned e4m3 bytes (the sign bit is ignored) as float32; 0x7f is zero."""
    exponent, mantissa = (scales.int() >> 3) & 15, (scales & 7).float()
    normal = torch.ldexp(1 + mantissa / 8, exponent - 7)
    value = torch.where(exponent == 0, mantissa * 2**-9, normal)
    return torch.where((scales == 0) | (scales == 0x7F), 0.0, value * 0.5)


def decode_mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    return _half_power_of_two(blocks[:, :1]) * _doubled_values(planes(blocks[:, 1:], 16, 4))


def decode_nvfp4(blocks: torch.Tensor) -> torch.Tensor:
    scales = _half_e4m3(blocks[:, :4]).repeat_interleave(16, 1)
    return scales * _doubled_values(planes(blocks[:, 4:], 8, 4))


DECODERS = {"MXFP4": decode_mxfp4, "NVFP4": decode_nvfp4}
