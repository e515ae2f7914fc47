"""The halves of a layer in one call against the same steps one after another."""

from __future__ import annotations

import sys

import pytest
import torch
from packed_blocks import random_blocks
from torch import Tensor

from mrs.kernels.activations import gated
from mrs.kernels.attention import attend
from mrs.kernels.layer import AttentionHalf, FeedForwardHalf
from mrs.kernels.library import NativeLibrary
from mrs.kernels.norms import rms_norm
from mrs.kernels.packed import PackedMatrix
from mrs.kernels.rope import rotate

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, PAIRS = 256, 512, 8, 2, 32, 12


@pytest.fixture(autouse=True)
def no_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library multiplies any number of tokens, the feed-forward half a few at a time."""
    monkeypatch.setattr("mrs.kernels.layer._SCRATCH_BYTES", 1)
    monkeypatch.setattr("mrs.kernels.packed._dense", lambda path: (sys.maxsize, torch.float32))


def packed(name: str, rows: int, columns: int, seed: int) -> PackedMatrix:
    matrix = PackedMatrix(name, rows, columns)
    matrix.fill(random_blocks(name, rows, columns, seed))
    return matrix


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tokens", [1, 3, 11, 27])
@pytest.mark.parametrize("formats", [("Q4_K", "Q4_K", "Q6_K"), ("Q4_1", "Q5_1", "BF16")])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_feed_forward(
    library: NativeLibrary, activation: str, formats: tuple[str, str, str], tokens: int
) -> None:
    gate = packed(formats[0], INTERMEDIATE, HIDDEN, 1)
    up = packed(formats[1], INTERMEDIATE, HIDDEN, 2)
    down = packed(formats[2], HIDDEN, INTERMEDIATE, 3)
    norm, x = normal(HIDDEN, seed=4), normal(tokens, HIDDEN, seed=5)
    half = FeedForwardHalf(library, norm, 1e-5, activation, (gate, up, down))
    assert half.takes(x)
    assert not half.takes(x.double())
    before = x.clone()
    normed = rms_norm(x, norm, 1e-5)
    wide = gated(activation, gate.matmul(normed), up.matmul(normed))
    assert torch.equal(half(x), x + down.matmul(wide))
    assert torch.equal(half(x.T.contiguous().T), x + down.matmul(wide))
    assert torch.equal(x, before)


@pytest.mark.parametrize("tokens", [1, 3, 11, 27])
@pytest.mark.parametrize("formats", [("Q4_K", "Q4_K", "Q6_K"), ("Q8_0", "F16", "BF16")])
@pytest.mark.parametrize(
    ("interleaved", "dtype"),
    [(False, torch.bfloat16), (True, torch.float16), (False, torch.float32)],
)
def test_attention(
    library: NativeLibrary,
    interleaved: bool,
    dtype: torch.dtype,
    formats: tuple[str, str, str],
    tokens: int,
) -> None:
    q = packed(formats[0], HEADS * HEAD_DIM, HIDDEN, 1)
    k = packed(formats[1], KV_HEADS * HEAD_DIM, HIDDEN, 2)
    v = packed(formats[2], KV_HEADS * HEAD_DIM, HIDDEN, 3)
    back = packed(formats[0], HIDDEN, HEADS * HEAD_DIM, 4)
    norm, x = normal(HIDDEN, seed=5), normal(tokens, HIDDEN, seed=6)
    cos, sin = normal(tokens, PAIRS, seed=7), normal(tokens, PAIRS, seed=8)
    half = AttentionHalf(library, norm, 1e-5, (q, k, v, back), HEAD_DIM, PAIRS, interleaved)
    normed = rms_norm(x, norm, 1e-5)
    new_q = rotate(q.matmul(normed).view(tokens, HEADS, -1), cos, sin, interleaved=interleaved)
    new_k = rotate(k.matmul(normed).view(tokens, KV_HEADS, -1), cos, sin, interleaved=interleaved)
    new_v = v.matmul(normed).view(tokens, KV_HEADS, -1)
    cache = [normal(KV_HEADS, 50, HEAD_DIM, seed=seed).to(dtype)[:, :40] for seed in (9, 10)]
    keys, values = (part.clone() for part in cache)
    keys[:, -tokens:], values[:, -tokens:] = new_k.transpose(0, 1), new_v.transpose(0, 1)
    mixed = attend(new_q, keys, values, scale=0.2, window=7, softcap=4.0)
    result = half(x, cos, sin, *cache, 0.2, 7, 4.0, None)
    assert torch.equal(cache[0], keys)
    assert torch.equal(cache[1], values)
    assert torch.equal(result, x + back.matmul(mixed))
