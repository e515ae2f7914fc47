"""What the plan says of the fused blocks of a layer is what their kernels allocate, to the byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm, Rope
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.formats import FORMATS
from mrs.kernels.cpu.fused_layer import NativeAttentionBlock, NativeMlpBlock
from mrs.kernels.cpu.fused_layer_chain import NativeLayerChain
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.plan.memory.activations.fused_activations import (
    fused_attention_bytes,
    fused_layer_bytes,
    fused_mlp_bytes,
)
from mrs.plan.memory.forward_pass import ForwardShape
from mrs.sizes.fused_workspace import FEW_TOKENS
from mrs.storage import Storage

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
HIDDEN, WIDE, HEADS, KV_HEADS, DIM, CONTEXT_TOKENS = 256, 1536, 8, 2, 32, 640
MIXER = Attention(HEADS, KV_HEADS, DIM, 0.2, Rope(DIM, 1e4))
LAYER = Layer(MIXER, Mlp(WIDE), Norm(1e-5))
#: Format, rows and columns of each matrix; those of queries, keys and values differ.
MATRICES = {
    "mixer.q": ("Q4_K", HEADS * DIM, HIDDEN),
    "mixer.k": ("Q5_K", KV_HEADS * DIM, HIDDEN),
    "mixer.v": ("Q6_K", KV_HEADS * DIM, HIDDEN),
    "mixer.o": ("Q8_0", HIDDEN, HEADS * DIM),
    "ffn.gate": ("Q4_0", WIDE, HIDDEN),
    "ffn.up": ("Q4_0", WIDE, HIDDEN),
    "ffn.down": ("BF16", HIDDEN, WIDE),
}


def kept(slot: str) -> Storage:
    return Storage(FORMATS[MATRICES[slot][0]], 0, "packed")


def matrices(*slots: str) -> Iterator[PackedMatrix]:
    for name, rows, columns in map(MATRICES.__getitem__, slots):
        matrix = PackedMatrix(name, rows, columns)
        matrix.fill(torch.zeros(rows, FORMATS[name].size_bytes((columns,)), dtype=torch.uint8))
        yield matrix


@pytest.fixture(params=[1, FEW_TOKENS, 9, 30, 512])
def run(request: pytest.FixtureRequest) -> ForwardShape:
    library, tokens = native_library(), request.param
    if library is None:
        pytest.skip("not computed by the library")
    f32 = FORMATS["F32"]
    return ForwardShape(tokens, tokens, CONTEXT_TOKENS, f32, f32, 1, library.path)


def attention_block() -> NativeAttentionBlock:
    library = native_library()
    assert library is not None
    some = list(matrices("mixer.q", "mixer.k", "mixer.v", "mixer.o"))
    some[2].add_residuals()
    norm = torch.ones(HIDDEN)
    return NativeAttentionBlock(
        library, norm, 1e-5, some, DIM, pairs=DIM // 2, interleaved=False, scale=0.2
    )


def mlp_block() -> NativeMlpBlock:
    library = native_library()
    assert library is not None
    some = list(matrices("ffn.gate", "ffn.up", "ffn.down"))
    return NativeMlpBlock(library, torch.ones(HIDDEN), 1e-5, "silu", some)


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor, PagedKV, AttentionBatch]:
    """Tokens at the end of the context, their angles, a cache and where their keys go."""
    kv = PagedKV(KV_HEADS, DIM, DIM, block_tokens=64, dtype=torch.float32, device=CPU)
    kv.resize(CONTEXT_TOKENS // 64)
    kv.keys.zero_()
    kv.values.zero_()
    batch = AttentionBatch(
        torch.tensor([0, tokens], dtype=torch.int32),
        torch.tensor([CONTEXT_TOKENS], dtype=torch.int32),
        torch.arange(CONTEXT_TOKENS // 64, dtype=torch.int32)[None],
        torch.arange(CONTEXT_TOKENS - tokens, CONTEXT_TOKENS),
    )
    angles = torch.zeros(tokens, DIM // 2)
    return torch.ones(tokens, HIDDEN), angles, angles, kv, batch


def test_attention(path: str, run: ForwardShape) -> None:
    block, (x, *others) = attention_block(), inputs(run.tokens)
    block(x, *others)
    taken = peak_bytes(lambda: block(x, *others), CPU)
    assert x.nbytes + taken == fused_attention_bytes(LAYER, HIDDEN, run, kept)


@pytest.mark.parametrize("scratch_bytes", [1 << 19, 31 << 20])
def test_feed_forward(
    path: str, run: ForwardShape, scratch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several pieces or one."""
    monkeypatch.setattr("mrs.sizes.fused_workspace.SCRATCH_BYTES", scratch_bytes)
    block, x = mlp_block(), torch.ones(run.tokens, HIDDEN)
    taken = peak_bytes(lambda: block(x), CPU)
    assert 2 * x.nbytes + taken == fused_mlp_bytes(LAYER, HIDDEN, run, kept)


def test_layers_in_one_call(path: str, run: ForwardShape) -> None:
    planned = fused_layer_bytes(LAYER, HIDDEN, run, kept)
    if planned is None:
        assert run.tokens > FEW_TOKENS
        return
    layers = NativeLayerChain([(attention_block(), mlp_block())], [0], [0])
    x, cos, sin, kv, batch = inputs(run.tokens)
    taken = peak_bytes(lambda: layers(x, [(cos, sin)], [kv], [batch]), CPU)
    assert x.nbytes + taken == planned
