"""Encoding Q2_K to Q6_K loses no more than llama.cpp's quantizer does."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
from llama_cpp_quantizer import Quantize, open_quantizer
from weight_samples import KINDS, root_mean_square, sample_weights

from mrs.formats import FORMATS
from mrs.quantization.gguf import decode, encode

NAMES = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]

pytestmark = pytest.mark.usefixtures("path")

#: Root-mean-square error of llama.cpp's `ggml_quantize_chunk` (without an importance matrix, as
#: built by llama-cpp-python 0.3.36) on `sample_weights(kind)`, decoded by gguf-py. The slow test
#: below measures them again.
LLAMA_CPP_ERROR: dict[tuple[str, str], float] = {
    ("Q2_K", "gaussian"): 5.914299e-03,
    ("Q2_K", "heavy-tailed"): 9.677441e-03,
    ("Q2_K", "outlier columns"): 1.059116e-02,
    ("Q3_K", "gaussian"): 3.018373e-03,
    ("Q3_K", "heavy-tailed"): 5.166908e-03,
    ("Q3_K", "outlier columns"): 6.178223e-03,
    ("Q4_K", "gaussian"): 1.425180e-03,
    ("Q4_K", "heavy-tailed"): 2.443854e-03,
    ("Q4_K", "outlier columns"): 3.136312e-03,
    ("Q5_K", "gaussian"): 7.218785e-04,
    ("Q5_K", "heavy-tailed"): 1.238756e-03,
    ("Q5_K", "outlier columns"): 1.576551e-03,
    ("Q6_K", "gaussian"): 3.544014e-04,
    ("Q6_K", "heavy-tailed"): 6.473059e-04,
    ("Q6_K", "outlier columns"): 9.131930e-04,
}


def encoded(weights: np.ndarray, name: str) -> np.ndarray:
    return encode(torch.from_numpy(weights), FORMATS[name]).numpy()


def error_of(blocks: np.ndarray, weights: np.ndarray, name: str) -> float:
    decoded = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    return root_mean_square(decoded - weights)


@pytest.mark.values
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_error_is_at_most_that_of_llama_cpp(name: str, kind: str) -> None:
    weights = sample_weights(kind)
    error = error_of(encoded(weights, name), weights, name)
    assert 0 < error <= LLAMA_CPP_ERROR[name, kind]


@pytest.fixture(scope="session")
def llama_cpp_quantize() -> Quantize:
    pytest.importorskip("llama_cpp")
    return open_quantizer()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [23, 24])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_beside_llama_cpp(name: str, kind: str, seed: int, llama_cpp_quantize: Quantize) -> None:
    weights = sample_weights(kind, seed=seed)
    theirs = error_of(llama_cpp_quantize(weights, name), weights, name)
    assert error_of(encoded(weights, name), weights, name) <= theirs
    if seed == 23:
        assert LLAMA_CPP_ERROR[name, kind] == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_edge_blocks_stay_finite_and_near(name: str) -> None:
    """One block a row: nothing, constants, one number, subnormal and huge scales, ramps."""
    ramp = np.linspace(-1, 1, 256, dtype=np.float32)
    single = np.where(np.arange(256) == 100, 5, 0).astype(np.float32)
    shapes = [np.zeros_like(ramp), np.ones_like(ramp), -np.ones_like(ramp), single, -single, ramp]
    shapes += [1 + 0.01 * ramp, -1 + 0.01 * ramp, np.sign(ramp), ramp * ramp, -ramp * ramp]
    steps = {"Q2_K": 3, "Q3_K": 7, "Q4_K": 15, "Q5_K": 31, "Q6_K": 63}
    for factor in (1e-30, 1e-7, 1e-5, 1.0, 1e4, 1e5):
        weights = np.stack(shapes) * np.float32(factor)
        decoded = decode(torch.from_numpy(encoded(weights, name)), FORMATS[name]).numpy()
        assert np.isfinite(decoded).all()
        span = np.abs(weights).max(1, keepdims=True)
        allowed = 1.1 * span / steps[name] + 2.0**-24 * steps[name]  # the smallest half
        assert (np.abs(decoded - weights) <= allowed).all(), factor


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name: str) -> None:
    weights = sample_weights("gaussian", 2, 512)
    weights[:, 100:400] = 0
    decoded = decode(torch.from_numpy(encoded(weights, name)), FORMATS[name]).numpy()
    assert root_mean_square(decoded[:, 128:384]) <= root_mean_square(weights) / 100


@pytest.mark.values
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_one_another(name: str, threads: int) -> None:
    weights = sample_weights("heavy-tailed", 600, 512)  # more than one chunk
    apart = [encoded(weights[rows], name) for rows in (slice(0, 7), slice(7, 600))]
    torch.set_num_threads(threads)
    np.testing.assert_array_equal(encoded(weights, name), np.concatenate(apart))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_and_stacked_sources(name: str) -> None:
    numbers = torch.from_numpy(sample_weights("gaussian", 4, 768))
    for dtype in (torch.bfloat16, torch.float16):
        stacked = encode(numbers.to(dtype).view(2, 2, 768), FORMATS[name])
        assert stacked.shape[:2] == (2, 2)
        assert torch.equal(stacked.flatten(0, 1), encode(numbers.to(dtype).float(), FORMATS[name]))


@pytest.mark.values
@pytest.mark.parametrize(("name", "smaller"), [
    ("Q2_K", "Q4_0"), ("Q3_K", "Q4_0"), ("Q4_K", "Q5_0"), ("Q5_K", "Q8_0"), ("Q6_K", "Q8_0"),
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_fallback_for_short_rows_is_no_less_precise(name: str, smaller: str, kind: str) -> None:
    weights = sample_weights(kind, 16)
    error = error_of(encoded(weights, smaller), weights, smaller)
    assert error <= error_of(encoded(weights, name), weights, name)
