"""The native paths quantize as the torch code does."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
from weight_samples import root_mean_square, sample_weights

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.formats import FORMATS
from mrs.kernels.cpu.library import native_library, native_paths
from mrs.quantization.gguf import encode


def encoded(
    path: str, weights: np.ndarray, name: str, monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    monkeypatch.setenv(PATH_VARIABLE, path)
    native_library.cache_clear()
    blocks = encode(torch.from_numpy(weights), FORMATS[name]).numpy()
    native_library.cache_clear()
    return blocks


def decoded(blocks: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def error_of(blocks: np.ndarray, weights: np.ndarray, name: str) -> float:
    return root_mean_square(decoded(blocks, name) - weights)


@pytest.mark.values
@pytest.mark.parametrize("columns", [256, 768])  # an odd number of super-blocks, and more of them
@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("path", native_paths())
def test_decisions_are_alike(
    path: str, name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in another order turn a few close decisions; the rest is the same byte by byte."""
    weights = sample_weights("gaussian", 33, columns)
    reference = encoded("torch", weights, name, monkeypatch)
    blocks = encoded(path, weights, name, monkeypatch)
    assert np.mean(blocks == reference) > 0.9
    error = error_of(blocks, weights, name)
    assert error == pytest.approx(error_of(reference, weights, name), rel=2e-3)


@pytest.mark.values
@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("path", native_paths())
def test_what_is_not_finite_stays_in_its_block(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sample_weights("gaussian", 4, 512)
    clean = encoded(path, weights, name, monkeypatch)
    size = FORMATS[name].block_elements
    for bad in (np.nan, np.inf, -np.inf):
        weights[0, 5] = bad
        blocks = encoded(path, weights, name, monkeypatch)
        rest, expected = (decoded(some, name).ravel()[size:] for some in (blocks, clean))
        np.testing.assert_array_equal(rest, expected)
