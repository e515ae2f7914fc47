"""What the plan says of the native parts of a layer is what they allocate, to the byte."""

from __future__ import annotations

import ctypes
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.formats import FORMATS
from mrs.graph.layer_graph import native_graph
from mrs.graph.program import parts_of, program_of
from mrs.graph.step_rows import FEW_TOKENS
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.native_structs import NativeStates
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.layers.attention.spec import Attention, SharedAttention
from mrs.layers.forward_pass import ForwardShape
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    Indexer,
    LatentAttention,
)
from mrs.layers.laurel.spec import Laurel
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.spec import GatedInput
from mrs.layers.mamba.spec import Mamba
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import Mixer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router
from mrs.layers.norm.spec import Norm
from mrs.layers.parallel_mixers.spec import ParallelMixers
from mrs.layers.rope.spec import Rope
from mrs.layers.short_convolution.spec import ShortConvolution
from mrs.model.native_program import Angles, CacheAccess, NativeProgram, NativeRun, Weights
from mrs.plan.memory.native_activations import native_part_bytes
from mrs.quantization.storage import Storage

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
HIDDEN, WIDE, HEADS, KV_HEADS, DIM, CONTEXT_TOKENS = 256, 1536, 8, 2, 32, 640
NORM = Norm(1e-5)
MIXER = Attention(HEADS, KV_HEADS, DIM, 0.2, Rope(DIM, 1e4))
EXPERTS, LATENT, NARROW = 8, 320, 416
ROUTER = Router(EXPERTS, 3, scoring="sigmoid", n_group=4, topk_group=2)
NORMED = Router(EXPERTS, 2, input_norm=NORM)
MIXTURE = Moe(Router(EXPERTS, 2), Mlp(NARROW))
LAYERS = {
    "pre": Layer(MIXER, Mlp(WIDE), NORM),
    "sandwich": Layer(MIXER, Mlp(WIDE), NORM, style="sandwich"),
    "parallel": Layer(MIXER, Mlp(WIDE), NORM, style="parallel"),
    "experts": Layer(MIXER, MIXTURE, NORM),
    "latent experts": Layer(
        MIXER,
        Moe(ROUTER, Mlp(NARROW), Mlp(WIDE), shared_gate=True, latent=LATENT),
        NORM,
    ),
    "MLP and experts": Layer(
        MIXER,
        MlpAndMoe(Mlp(WIDE), replace(MIXTURE, router=NORMED), NORM),
        NORM,
    ),
}
#: Layers with states, and with gates and norms of every kind.
STATES = {
    "delta net": GatedDeltaNet(2, 4, 24, 64, 4, NORM),
    "channel decays": KimiDeltaAttention(4, 64, 4, NORM),
    "state space": Mamba2(4, 64, 24, 2, 4, NORM, bias=True, multipliers=(0.5, 1.0, 2.0, 0.5, 1.5)),
    "decays of values": Mamba(256, 24, 32, 4, NORM, bias=True),
    "short convolution": ShortConvolution(256, 3, bias=True),
    "both": ParallelMixers(MIXER, Mamba2(4, 64, 24, 2, 4, NORM), 0.5, 0.7, 1.3, 0.3),
}
MLA = LatentAttention(HEADS, 48, 40, 96, 160, 0.2, Rope(DIM, 1e4), NORM)
_MLA = {each.name: getattr(MLA, each.name) for each in fields(MLA)}
INDEXER = Indexer(4, 32, 48, interleaved=True, norm=NORM)
FURTHER = {
    "latent": Layer(MLA, Mlp(WIDE), NORM),
    "indexed": Layer(IndexedAttention(**_MLA, indexer=INDEXER), Mlp(WIDE), NORM),
    "a borrowed choice": Layer(BorrowedChoiceAttention(**_MLA, top_k=48), Mlp(WIDE), NORM),
    "indexed, of all": Layer(
        IndexedAttention(**_MLA, indexer=replace(INDEXER, top_k=CONTEXT_TOKENS)), Mlp(WIDE), NORM
    ),
    "latent queries of one rank": Layer(replace(MLA, q_lora_rank=None), Mlp(WIDE), NORM),
    **{name: Layer(mixer, Mlp(WIDE), NORM) for name, mixer in STATES.items()},
    "slopes": Layer(replace(MIXER, alibi=(0.5,) * HEADS, rope=None), Mlp(WIDE), NORM),
    "shared": Layer(SharedAttention(MIXER, 0), Mlp(WIDE), NORM),
    "low rank": Layer(MIXER, Mlp(WIDE), NORM, laurel=Laurel(32, NORM)),
    "own input": Layer(MIXER, Mlp(WIDE), NORM, gated_input=GatedInput(96, "silu", NORM)),
    "gated": Layer(replace(MIXER, gated=True, value_norm=NORM), Mlp(WIDE), NORM),
    "layer norms": Layer(
        replace(MIXER, output_gate="softplus"),
        Mlp(WIDE, "xielu", gated=False),
        Norm(1e-5, "layer", bias=True),
    ),
}
INDEX_KEYS = Attention(1, 1, INDEXER.head_dim, 1.0, None)
#: Format, rows and columns of each matrix; those of queries, keys and values differ.
MATRICES = {
    "mixer.q": ("Q4_K", HEADS * DIM, HIDDEN),
    "mixer.k": ("Q5_K", KV_HEADS * DIM, HIDDEN),
    "mixer.v": ("Q6_K", KV_HEADS * DIM, HIDDEN),
    "mixer.o": ("Q8_0", HIDDEN, HEADS * DIM),
    "ffn.gate": ("Q4_0", WIDE, HIDDEN),
    "ffn.up": ("Q4_0", WIDE, HIDDEN),
    "ffn.down": ("BF16", HIDDEN, WIDE),
    "ffn.latent_in": ("Q8_0", LATENT, HIDDEN),
    "ffn.latent_out": ("BF16", HIDDEN, LATENT),
    "ffn.shared.gate": ("Q4_K", WIDE, HIDDEN),
    "ffn.shared.up": ("Q4_K", WIDE, HIDDEN),
    "ffn.shared.down": ("Q6_K", HIDDEN, WIDE),
}


def kept(slot: str) -> Storage:
    return Storage(FORMATS[MATRICES[slot][0]], 0, "packed", residuals=slot == "mixer.v")


def experts_of(moe: Moe) -> dict[str, tuple[str, int, int]]:
    """The experts' matrices; those of the second one have other formats."""
    width, wide = moe.latent or HIDDEN, moe.expert.intermediate
    shapes = {"gate": (wide, width), "up": (wide, width), "down": (width, wide)}
    return {
        f"ffn.experts.{n}.{part}": ("BF16" if n == 1 else "Q8_0", *shape)
        for n in range(EXPERTS)
        for part, shape in shapes.items()
    }


def vector(name: str) -> Tensor:
    """All experts have the same score, so that the first ones get all tokens."""
    return torch.zeros(EXPERTS, HIDDEN) if name == "ffn.router.weight" else torch.ones(HIDDEN)


def matrix(slot: str) -> PackedMatrix:
    name, rows, columns = MATRICES[slot]
    made = PackedMatrix(name, rows, columns)
    made.fill(torch.zeros(rows, FORMATS[name].size_bytes((columns,)), dtype=torch.uint8))
    if slot == "mixer.v":
        made.add_residuals()
    return made


@pytest.fixture(params=[1, FEW_TOKENS, 9, 30, 512])
def run(request: pytest.FixtureRequest, native_path: str) -> ForwardShape:
    f32 = FORMATS["F32"]
    return ForwardShape(request.param, request.param, CONTEXT_TOKENS, f32, f32, 1, native_path)


def inputs(tokens: int, mixer: Mixer = MIXER) -> tuple[Tensor, Angles, CacheAccess]:
    """Tokens at the end of the context, their angles, a cache and where their keys go."""
    attention, is_latent = MIXER, isinstance(mixer, LatentAttention)
    if isinstance(mixer, Attention | LatentAttention):
        attention = mixer.absorbed if isinstance(mixer, LatentAttention) else mixer
    kv = PagedKV(
        *(attention.kv_heads, attention.key_dim, attention.value_dim),
        block_tokens=64,
        dtype=torch.float32,
        device=CPU,
        values_in_keys=is_latent,
    )
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
    return torch.ones(tokens, HIDDEN), Angles(angles, angles), CacheAccess(kv, batch)


@pytest.mark.parametrize("scratch_bytes", [1 << 19, 31 << 20])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer(
    run: ForwardShape,
    layer: Layer,
    scratch_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In several pieces or one."""
    monkeypatch.setattr("mrs.graph.program.SCRATCH_BYTES", scratch_bytes)
    moe = getattr(layer.feed_forward, "moe", layer.feed_forward)
    if isinstance(moe, Moe):
        for slot, matrix_shape in experts_of(moe).items():
            monkeypatch.setitem(MATRICES, slot, matrix_shape)
    library = native_library()
    assert library is not None
    graph = native_graph(layer, HIDDEN, lambda slot: True)
    ((operations, is_native),) = parts_of(graph)
    assert is_native
    program = program_of(operations, graph)
    weights = Weights(matrix, vector)
    native = NativeRun([NativeProgram(library, program, weights)], [0])
    x, angles, access = inputs(run.tokens)
    native(x, [access], [angles])
    taken = peak_bytes(lambda: native(x, [access], [angles]), CPU)
    assert 2 * x.nbytes + taken == native_part_bytes(program, HIDDEN, run, kept)


@pytest.mark.few(42)
@pytest.mark.parametrize("layer", FURTHER.values(), ids=FURTHER)
def test_a_layer_of_another_kind(run: ForwardShape, layer: Layer) -> None:
    library = native_library()
    assert library is not None
    graph = native_graph(layer, HIDDEN, lambda slot: True)
    ((operations, is_native),) = parts_of(graph)
    assert is_native
    slots = list(layer.slots(HIDDEN))
    shapes = {f"{each.name}{each.suffix}": each.shape for each in slots}
    shapes |= {f"{each.name}.bias": each.shape[:1] for each in slots}
    matrices = {
        f"{each.name}.weight": PackedMatrix("Q8_0", *each.shape)
        for each in slots
        if each.role == "matrix"
    }
    if "mixer.v.weight" in matrices and isinstance(layer.mixer, Attention | ParallelMixers):
        matrices["mixer.v.weight"].add_residuals()
    weights = Weights(
        lambda slot: matrices[f"{slot}.weight"], lambda name: torch.ones(shapes[name])
    )
    program = program_of(operations, graph)
    native = NativeRun([NativeProgram(library, program, weights)], [0])
    x, angles, (kv, batch, *_) = inputs(run.tokens, layer.mixer)
    starts = (ctypes.c_int32 * 2)(0, run.tokens)
    memory = torch.zeros(2, layer.mixer.cache_shape.state_values)
    recent, state = ([each.data_ptr()] for each in memory)
    given = torch.zeros(run.tokens, program.given_floats)
    index_kv = inputs(run.tokens, INDEX_KEYS)[2].cache
    access = CacheAccess(kv, batch, NativeStates.of(starts, recent, state), given, index_kv)
    native(x, [access], [angles])
    taken = given.nbytes + peak_bytes(lambda: native(x, [access], [angles]), CPU)
    stored = Storage(FORMATS["Q8_0"], 0, "packed")
    planned = native_part_bytes(program, HIDDEN, run, lambda slot: stored)
    assert 2 * x.nbytes + taken == planned
