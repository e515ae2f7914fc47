"""Encoding INT, FP8 and MXFP4 blocks, which `--isq afq4`, `fp8` and `mxfp4` make."""

from __future__ import annotations

from statistics import NormalDist

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
from weight_samples import KINDS, sample_weights

from mrs.formats import FORMATS
from mrs.quantization.gguf import decode, encode
from mrs.quantization.gguf.grouped import NF4_VALUES

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def decoded(weights: np.ndarray, name: str) -> np.ndarray:
    return decode(encode(torch.from_numpy(weights), FORMATS[name]), FORMATS[name]).numpy()


def square_error(found: np.ndarray, weights: np.ndarray) -> float:
    return float(np.square(found.astype(np.float64) - weights).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_ints_lose_no_more_than_the_whole_range(bits: int, kind: str) -> None:
    """Minimum and maximum of a group as its first and last code: what mistral.rs's AFQ does."""
    weights = sample_weights(kind, 16, 512)
    groups = weights.reshape(-1, 64).astype(np.float64)
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    step = (high - low) / (2**bits - 1)
    whole_range = (np.round((groups - low) / step) * step + low).reshape(weights.shape)
    found = decoded(weights, f"INT{bits}_64")
    assert square_error(found, weights) <= 1.01 * square_error(whole_range, weights)
    assert np.abs(found - weights).max() <= 1.6 * step.max()


@pytest.mark.parametrize("name", ["INT2_64", "INT4_32", "INT8_64", "FP8_128", "MXFP4"])
def test_edge_blocks(name: str) -> None:
    ramp = np.linspace(-1, 1, 128, dtype=np.float32)
    rows = np.stack([0 * ramp, 0 * ramp + 1, 0 * ramp - 1, np.where(ramp > 0.9, 5, 0), 3 + ramp])
    for factor in (1e-30, 1e-6, 1.0, 1e6):
        weights = (rows * factor).astype(np.float32)
        found = decoded(weights, name)
        assert np.isfinite(found).all()
        assert (found[0] == 0).all()
        steps = {"INT2_64": 0.34, "INT4_32": 0.07, "MXFP4": 0.34}.get(name, 0.07)
        assert np.abs(found - weights).max() <= steps * 5 * factor


@pytest.mark.parametrize("kind", KINDS)
def test_fp8_rounds_each_value_once(kind: str) -> None:
    weights = sample_weights(kind, 8, 512)
    scale = np.abs(weights.reshape(-1, 128)).max(1).repeat(128).reshape(weights.shape) / 448
    error = np.abs(decoded(weights, "FP8_128") - weights)
    assert (error <= np.maximum(np.abs(weights) / 16, scale * 2**-10) * 1.0001).all()


@pytest.mark.parametrize("kind", KINDS)
def test_mxfp4_is_the_best_of_two_exponents(kind: str) -> None:
    weights = sample_weights(kind, 8, 256)
    blocks = encode(torch.from_numpy(weights), FORMATS["MXFP4"])
    found = decode(blocks, FORMATS["MXFP4"]).numpy()
    theirs = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(found, theirs)
    groups = weights.reshape(-1, 32).astype(np.float64)
    exponent = np.ceil(np.log2(np.abs(groups).max(1, keepdims=True) / 6))
    errors = []
    for each in (exponent, exponent - 1):
        scaled = np.abs(groups)[..., None] / 2.0 ** each[..., None]
        nearest = np.sign(groups) * E2M1[np.abs(scaled - E2M1).argmin(-1)] * 2.0**each
        errors.append(np.square(nearest - groups).sum(1))
    assert square_error(found, weights) == pytest.approx(np.minimum(*errors).sum(), rel=1e-4)


def test_nf4_has_the_quantiles_of_the_normal_distribution() -> None:
    """As the paper of QLoRA defines them: eight steps to each side, with an exact 0."""
    normal, last = NormalDist(), 0.9677083
    above = [normal.inv_cdf(each) for each in np.linspace(last, 0.5, 9)[:-1]]
    below = [-normal.inv_cdf(each) for each in np.linspace(last, 0.5, 8)[:-1]]
    expected = np.array(sorted([*below, 0.0, *above])) / max(above)
    np.testing.assert_allclose(NF4_VALUES, expected, atol=1e-4)
