"""Encoding Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 is bit-exact with gguf-py."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest
import torch

from mrs.errors import Unsupported
from mrs.formats import FORMATS
from mrs.quantization.gguf import decode, encode

pytestmark = pytest.mark.usefixtures("path")

NAMES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def weights(kind: str) -> np.ndarray:
    rng = np.random.default_rng(11)
    if kind == "gaussian":
        return rng.standard_normal((130, 1024)).astype(np.float32) * np.float32(0.02)
    if kind == "heavy tails":
        return rng.standard_t(3, (64, 256)).astype(np.float32)
    if kind == "ties":  # many equal magnitudes, and halves after scaling
        return rng.integers(-16, 17, (64, 256)).astype(np.float32) / 16
    if kind == "constant":
        return np.repeat(np.array([[0.0], [-0.0], [1.5], [-2.0]], np.float32), 64, axis=1)
    tiny = rng.standard_normal((64, 256)).astype(np.float32)
    return tiny * np.float32(1e-7)  # scales are subnormal halves or zero


@pytest.mark.values
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails", "ties", "constant", "tiny"])
@pytest.mark.parametrize("name", NAMES)
def test_bit_exact(name: str, kind: str) -> None:
    numbers = weights(kind)
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[name])
    encoded = encode(torch.from_numpy(numbers), FORMATS[name])
    assert encoded.dtype == torch.uint8
    np.testing.assert_array_equal(encoded.numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_sources(name: str) -> None:
    numbers = torch.from_numpy(weights("gaussian")).to(torch.bfloat16)
    assert torch.equal(encode(numbers, FORMATS[name]), encode(numbers.float(), FORMATS[name]))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_half_floats_round_to_nearest(name: str) -> None:
    numbers = torch.from_numpy(weights("gaussian"))
    encoded = encode(numbers, FORMATS[name])
    assert encoded.shape == (130, 2048)
    torch.testing.assert_close(decode(encoded, FORMATS[name]), numbers, rtol=2**-8, atol=1e-7)


def test_refusals() -> None:
    with pytest.raises(Unsupported, match="IQ2_XXS"):
        encode(torch.zeros(1, 256), FORMATS["IQ2_XXS"])
    with pytest.raises(ValueError, match="rows of 48"):
        encode(torch.zeros(1, 48), FORMATS["Q4_0"])
