"""Halves of layers, and several layers, in one call against the same steps one after another."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks
from torch import Tensor

from mrs.kernels.attention_backend import attention_backend
from mrs.kernels.cpu.fused_layer import NativeAttentionBlock, NativeMlpBlock
from mrs.kernels.cpu.fused_layer_chain import NativeLayerChain
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.nonlinearities import gated
from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.rotate import rotate
from mrs.sizes.fused_workspace import FEW_TOKENS

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, PAIRS = 256, 512, 8, 2, 32, 12
BLOCK = 16


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The MLP block multiplies 36 tokens at a time."""
    monkeypatch.setattr(
        "mrs.sizes.fused_workspace.SCRATCH_BYTES", 36 * 4 * (HIDDEN + 2 * INTERMEDIATE)
    )


def packed(name: str, rows: int, columns: int, seed: int) -> PackedMatrix:
    matrix = PackedMatrix(name, rows, columns)
    matrix.fill(random_blocks(name, rows, columns, seed))
    return matrix


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(keys: Tensor, values: Tensor, dtype: torch.dtype = torch.float32) -> PagedKV:
    """A cache whose first blocks hold these tokens (KV, S, D)."""
    kv_heads, tokens, dim = keys.shape
    kv = PagedKV(kv_heads, dim, dim, block_tokens=BLOCK, dtype=dtype, device=torch.device("cpu"))
    kv.resize(6)
    kv.write(torch.arange(tokens), (keys.transpose(0, 1), values.transpose(0, 1)))
    return kv


def new_tokens(count: int, before: int) -> AttentionBatch:
    """So many new tokens of one sequence after those `before`, in the first blocks."""
    end = before + count
    return AttentionBatch(
        torch.tensor([0, count], dtype=torch.int32),
        torch.tensor([end], dtype=torch.int32),
        torch.arange(6, dtype=torch.int32)[None],
        torch.arange(before, end),
    )


@pytest.mark.parametrize("tokens", [1, 3, 11, 27, 70])
@pytest.mark.parametrize("formats", [("Q4_K", "Q4_K", "Q6_K"), ("Q4_1", "Q5_1", "BF16")])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_feed_forward(
    library: NativeLibrary, activation: str, formats: tuple[str, str, str], tokens: int
) -> None:
    gate = packed(formats[0], INTERMEDIATE, HIDDEN, 1)
    up = packed(formats[1], INTERMEDIATE, HIDDEN, 2)
    down = packed(formats[2], HIDDEN, INTERMEDIATE, 3)
    norm, x = normal(HIDDEN, seed=4), normal(tokens, HIDDEN, seed=5)
    block = NativeMlpBlock(library, norm, 1e-5, activation, (gate, up, down))
    assert block.supports(x)
    assert not block.supports(x.double())
    before = x.clone()
    normed = rms_norm(x, norm, 1e-5)
    gated_up = gated(activation, gate.matmul(normed), up.matmul(normed))
    assert torch.equal(block(x), x + down.matmul(gated_up))
    assert torch.equal(block(x.T.contiguous().T), x + down.matmul(gated_up))
    assert torch.equal(x, before)


@pytest.mark.parametrize("tokens", [1, 3, 11, 27])
@pytest.mark.parametrize("extras", ["", "biases", "biases, head norms"])
@pytest.mark.parametrize(
    "formats", [("Q4_K", "Q4_K", "Q6_K"), ("Q8_0", "F16", "BF16"), ("F32", "F32", "F32")]
)
@pytest.mark.parametrize(
    ("interleaved", "dtype"),
    [(False, torch.bfloat16), (True, torch.float16), (False, torch.float32)],
)
def test_attention(
    library: NativeLibrary,
    interleaved: bool,
    dtype: torch.dtype,
    formats: tuple[str, str, str],
    extras: str,
    tokens: int,
) -> None:
    q = packed(formats[0], HEADS * HEAD_DIM, HIDDEN, 1)
    k = packed(formats[1], KV_HEADS * HEAD_DIM, HIDDEN, 2)
    v = packed(formats[2], KV_HEADS * HEAD_DIM, HIDDEN, 3)
    back = packed(formats[0], HIDDEN, HEADS * HEAD_DIM, 4)
    norm, x = normal(HIDDEN, seed=5), normal(tokens, HIDDEN, seed=6)
    cos, sin = normal(tokens, PAIRS, seed=7), normal(tokens, PAIRS, seed=8)
    biases = [normal(matrix.shape[0], seed=11) if extras else None for matrix in (q, k, v)]
    head_norms = [normal(HEAD_DIM, seed=seed) if "norms" in extras else None for seed in (12, 13)]
    block = NativeAttentionBlock(
        library,
        norm,
        1e-5,
        (q, k, v, back),
        HEAD_DIM,
        pairs=PAIRS,
        interleaved=interleaved,
        scale=0.2,
        window=7,
        softcap=4.0,
        biases=biases,
        head_norms=head_norms,
        head_eps=1e-3,
    )
    normed = rms_norm(x, norm, 1e-5)
    made = [matrix.matmul(normed) for matrix in (q, k, v)]
    made = [y if bias is None else y + bias for y, bias in zip(made, biases, strict=True)]
    new_q, new_k, new_v = (y.view(tokens, -1, HEAD_DIM) for y in made)
    if "norms" in extras:
        new_q, new_k = rms_norm(new_q, head_norms[0], 1e-3), rms_norm(new_k, head_norms[1], 1e-3)
    new_q = rotate(new_q, cos, sin, interleaved=interleaved)
    new_k = rotate(new_k, cos, sin, interleaved=interleaved)
    old = [normal(KV_HEADS, 40 - tokens, HEAD_DIM, seed=seed) for seed in (9, 10)]
    cache, same = (filled(*old, dtype=dtype) for _ in range(2))
    batch, backend = new_tokens(tokens, 40 - tokens), attention_backend(same)
    backend.write(same, batch, new_k, new_v)
    mixed = backend.attend(new_q, same, batch, scale=0.2, window=7, softcap=4.0)
    result = block(x, cos, sin, cache, batch)
    assert torch.equal(result, x + back.matmul(mixed))
    blocks = torch.arange(3)
    for actual, expected in zip(cache.read(blocks, 0, 40), same.read(blocks, 0, 40), strict=True):
        assert torch.equal(actual, expected)


def layer(
    library: NativeLibrary, seed: int, intermediate: int
) -> tuple[NativeAttentionBlock, NativeMlpBlock]:
    q = packed("Q4_K", HEADS * HEAD_DIM, HIDDEN, seed)
    k = packed("Q4_K", KV_HEADS * HEAD_DIM, HIDDEN, seed + 1)
    v = packed("Q6_K", KV_HEADS * HEAD_DIM, HIDDEN, seed + 2)
    back = packed("Q4_K", HIDDEN, HEADS * HEAD_DIM, seed + 3)
    gate = packed("Q4_K", intermediate, HIDDEN, seed + 4)
    up = packed("Q4_K", intermediate, HIDDEN, seed + 5)
    down = packed("Q8_0", HIDDEN, intermediate, seed + 6)
    norm = normal(HIDDEN, seed=seed)
    options = {"pairs": PAIRS, "interleaved": False, "scale": 0.2, "window": 30 + seed}
    attention = NativeAttentionBlock(library, norm, 1e-5, (q, k, v, back), HEAD_DIM, **options)
    return attention, NativeMlpBlock(library, norm, 1e-5, "silu", (gate, up, down))


@pytest.mark.parametrize("tokens", [1, 2, FEW_TOKENS])
def test_layers_in_one_call(library: NativeLibrary, tokens: int) -> None:
    """The second layer needs more scratch than the others, and turns by other angles."""
    layers = [layer(library, 10, 256), layer(library, 20, 1024), layer(library, 30, 512)]
    x = normal(tokens, HIDDEN, seed=1)
    ropes = [(normal(tokens, PAIRS, seed=n), normal(tokens, PAIRS, seed=n + 1)) for n in (2, 4)]
    which = [0, 1, 0]
    old = [[normal(KV_HEADS, 40, HEAD_DIM, seed=n + m) for m in range(2)] for n in (10, 20, 30)]
    caches, same = ([filled(*tensors) for tensors in old] for _ in range(2))
    batch = new_tokens(tokens, 40)
    chain = NativeLayerChain(layers, which, [0, 0, 0])
    assert chain.supports(x)
    assert not chain.supports(normal(FEW_TOKENS + 1, HIDDEN, seed=1))
    assert not chain.supports(x.double())
    before = x.clone()
    result = chain(x, ropes, caches, [batch])
    assert torch.equal(x, before)
    for (attention, feed_forward), rope, cache in zip(layers, which, same, strict=True):
        x = feed_forward(attention(x, *ropes[rope], cache, batch))
    assert torch.equal(result, x)
    blocks, end = torch.arange(6), 40 + tokens
    for one, other in zip(caches, same, strict=True):
        for actual, expected in zip(
            one.read(blocks, 0, end), other.read(blocks, 0, end), strict=True
        ):
            assert torch.equal(actual, expected)
