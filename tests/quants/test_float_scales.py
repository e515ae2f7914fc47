"""Block-scaled floats of safetensors: tiled 8-bit floats and gpt-oss's 4-bit pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mrs.formats import FORMATS
from mrs.quants import decode
from mrs.quants.float8 import decode_float8_tiles
from mrs.quants.fp4 import decode_mxfp4_pairs


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


@pytest.mark.parametrize("shape", [(256, 384), (130, 200), (1, 1)])
def test_tiles_against_float64(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    tiles = (-(-shape[0] // 128), -(-shape[1] // 128))
    scales = torch.rand(tiles, generator=generator)
    every = scales.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    expected = weights.double() * every[: shape[0], : shape[1]]
    decoded = decode_float8_tiles(weights, scales, dtype=torch.float32)
    torch.testing.assert_close(decoded.double(), expected, rtol=1e-7, atol=0)
    assert decode_float8_tiles(weights, scales).dtype == torch.bfloat16


def test_tiles_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="do not tile"):
        decode_float8_tiles(torch.zeros(256, 256, dtype=torch.float8_e4m3fn), torch.ones(1, 2))


def test_pairs_against_float64() -> None:
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (3, 2, 5, 16), dtype=np.uint8)
    scales = rng.integers(100, 140, (3, 2, 5), dtype=np.uint8)
    expected = np.zeros((3, 2, 5, 32))
    for place in np.ndindex(*blocks.shape):
        for half, code in enumerate((blocks[place] & 15, blocks[place] >> 4)):
            number = values[code & 7] * (-1 if code & 8 else 1)
            expected[(*place[:3], 2 * place[3] + half)] = number * 2.0 ** (
                scales[place[:3]] - 127.0
            )
    decoded = decode_mxfp4_pairs(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    np.testing.assert_array_equal(decoded.double().numpy(), expected.reshape(3, 2, 160))


def test_pairs_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="do not match"):
        decode_mxfp4_pairs(
            torch.zeros(2, 3, 16, dtype=torch.uint8), torch.zeros(2, 4, dtype=torch.uint8)
        )
