"""The values of 8-bit floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mrs.formats import FORMATS
from mrs.quantization.gguf import decode


def e4m3(byte: int) -> float:
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def e5m2(byte: int) -> float:
    return float(np.array([byte << 8], "<u2").view("<f2")[0])


@pytest.mark.parametrize(("name", "reference"), [("F8_E4M3", e4m3), ("F8_E5M2", e5m2)])
def test_every_8_bit_float(name: str, reference: object) -> None:
    assert callable(reference)
    decoded = decode(torch.arange(256, dtype=torch.uint8).view(1, 256), FORMATS[name])
    expected = np.array([[reference(byte) for byte in range(256)]], np.float32)
    np.testing.assert_array_equal(decoded.numpy(), expected)
