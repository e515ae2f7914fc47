"""A step that names what is not there is an error of one line, and nothing is computed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mrs.errors import BadIndex
from mrs.graph.layer_graph import native_embedding, native_graph, native_head
from mrs.graph.program import program_of
from mrs.kernels.attention_backend import NativeAttention
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu import elementwise
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.native_structs import NativeStates
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.layers.attention.spec import Attention
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.layer import Layer
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import Rope
from mrs.layers.short_convolution.spec import ShortConvolution
from mrs.model.native_layers import program_weights
from mrs.model.native_program import Angles, CacheAccess, NativeProgram, NativeRun
from support.packed_layers import HIDDEN, VOCABULARY, packed, spec_of, weights_of

BLOCKS, BLOCK, HEAD_DIM, POSITIONS = 4, 16, 32, 64
HEADS, KV_HEADS, PAIRS = 8, 2, 12
LAYER = Layer(Attention(HEADS, KV_HEADS, HEAD_DIM, 0.2, Rope(24, 1e4)), Mlp(256), Norm(1e-5))
MIXERS = {
    "delta net": GatedDeltaNet(2, 4, 24, 40, 4, Norm(1e-3)),
    "channel decays": KimiDeltaAttention(2, 32, 4, Norm(1e-3)),
    "state space": Mamba2(4, 40, 24, 2, 4, Norm(1e-3)),
    "short convolution": ShortConvolution(64, 4),
}
#: Two sequences: three new tokens after 17, and one after none; each has a table of two blocks.
ROWS = 4
OPTIONS = AttentionOptions(0.2)
INT32, INT64 = 1 << 31, 1 << 63


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cache(value_dim: int = HEAD_DIM, *, in_keys: bool = False, blocks: int = BLOCKS) -> PagedKV:
    kv = PagedKV(
        1 if in_keys else KV_HEADS,
        HEAD_DIM,
        value_dim,
        block_tokens=BLOCK,
        dtype=torch.float32,
        device=torch.device("cpu"),
        values_in_keys=in_keys,
    )
    if blocks:
        kv.resize(blocks)
    for x in kv.tensors:
        x.copy_(normal(*x.shape, seed=3))
    return kv


def batch(ends: Tensor | None = None) -> AttentionBatch:
    return AttentionBatch(
        torch.tensor([0, 3, 4], dtype=torch.int32),
        torch.tensor([20, 1], dtype=torch.int32),
        torch.tensor([[3, 1], [2, 0]], dtype=torch.int32),
        torch.tensor([17, 18, 19, 32]),
        ends,
    )


def changed(field: str, place: tuple[int, ...], value: int) -> AttentionBatch:
    """The batch with one other number; the tensors lie at the end of what may be read of them."""
    given = batch(torch.tensor([19, 19, 19, 0]) if field == "attention_ends" else None)
    numbers = getattr(given, field).clone()
    numbers[place] = value
    return replace(given, **{field: numbers})


#: Of each kind: a number's place, values that are wrong there, and the words for it.
WRONG = {
    "a block": ("block_tables", (0, 1), (BLOCKS, -1, INT32 - 1, -INT32), f"block .* of {BLOCKS}"),
    "a first block": ("block_tables", (1, 0), (BLOCKS, -1), f"block .* of {BLOCKS}"),
    "a slot": (
        "slot_mapping",
        (2,),
        (BLOCKS * BLOCK, -1, INT64 - 1, -INT64),
        f"slot .* of {BLOCKS * BLOCK}",
    ),
    "a first row": ("query_start", (0,), (1, -1, -INT32), f"first row .* of {ROWS}"),
    "a row": ("query_start", (1,), (5, -1, INT32 - 1, -INT32), f"first row .* of {ROWS}"),
    "an end": ("query_start", (2,), (3, 5, 2, -1, INT32 - 1), f"first row .* of {ROWS}"),
    "a length": ("context_lens", (0,), (2, 33, -1, INT32 - 1, -INT32), "length .* of 32"),
    "an attention end": (
        "attention_ends",
        (0,),
        (20, 16, -1, INT64 - 1, -INT64),
        "last position attended to .* of 20",
    ),
}
CASES = [
    pytest.param(field, place, value, words, id=f"{name} {value}")
    for name, (field, place, values, words) in WRONG.items()
    for value in values
]


class Calls:
    """Every call that reads or writes a paged cache, by name."""

    def __init__(self, library: NativeLibrary) -> None:
        backend = NativeAttention(library)
        self.caches = {"own values": cache(), "values in keys": cache(16, in_keys=True)}
        self.programs = Programs(library)
        x, angles = normal(ROWS, HIDDEN, seed=1), normal(ROWS, PAIRS, seed=2)
        kv, latent = self.caches.values()
        q, keys = normal(ROWS, HEADS, HEAD_DIM, seed=4), normal(ROWS, KV_HEADS, HEAD_DIM, seed=5)
        self.readers: dict[str, Callable[[AttentionBatch], object]] = {
            "attention": lambda given: backend.attend(q, kv, given, OPTIONS),
            "latent attention": lambda given: backend.attend(q, latent, given, OPTIONS),
        }
        self.writers: dict[str, Callable[[AttentionBatch], object]] = {
            "keys and values": lambda given: backend.write(kv, given, keys, keys),
            "latent keys": lambda given: backend.write(latent, given, keys[:, :1], None),
        }
        self.both: dict[str, Callable[[AttentionBatch], object]] = {
            "a layer": lambda given: self.programs.layer(x, angles, kv, given),
            "a model": lambda given: self.ask(given),
        }

    def ask(self, given: AttentionBatch, token: int = 7, position: int = 9) -> Tensor:
        ids, positions = torch.tensor([1, 2, 3, token]), torch.tensor([0, 1, 2, position])
        return self.programs.model(ids, positions, self.caches["own values"], given)

    def contents(self) -> list[Tensor]:
        return [x.clone() for kv in self.caches.values() for x in kv.tensors]


class Programs:
    """A layer, and a model of that layer."""

    def __init__(self, library: NativeLibrary) -> None:
        spec = spec_of(LAYER, 1)
        weights = weights_of(spec)
        graph, embedding = native_graph(LAYER, HIDDEN, lambda slot: True), native_embedding(spec)
        head = native_head(spec)
        assert embedding is not None
        assert head is not None

        def native(prefix: str, *arguments: Any) -> NativeProgram:
            plan = program_of(arguments[0].operations, *arguments)
            return NativeProgram(library, plan, program_weights(weights.under(prefix)))

        middle = native("layers.0.", graph)
        self._layer = NativeRun([middle], [0])
        programs = [native("", embedding), middle, native("", *head)]
        self._model = NativeRun(programs, [None, 0, None])

    def layer(self, x: Tensor, angles: Tensor, kv: PagedKV, given: AttentionBatch) -> None:
        self._layer(x.clone(), [CacheAccess(kv, given)], [Angles(angles, angles)])

    def model(self, ids: Tensor, positions: Tensor, kv: PagedKV, given: AttentionBatch) -> Tensor:
        table = normal(POSITIONS, PAIRS, seed=2)
        stream, logits = torch.empty(len(ids), HIDDEN), torch.empty(len(ids), VOCABULARY)
        accesses = [None, CacheAccess(kv, given), None]
        angles = [Angles(table, table, positions)]
        self._model(stream, accesses, angles, ids=ids, result=logits)
        return logits


@pytest.fixture
def calls(library: NativeLibrary) -> Calls:
    return Calls(library)


def test_a_right_step_is_computed(calls: Calls) -> None:
    for call in (calls.readers | calls.writers | calls.both).values():
        call(batch())
    for call in calls.readers.values():
        call(batch(torch.tensor([19, 19, 19, 0])))
    assert calls.ask(batch()).isfinite().all()


@pytest.mark.parametrize(("field", "place", "value", "words"), CASES)
def test_a_wrong_number_of_a_batch(
    calls: Calls, field: str, place: tuple[int, ...], value: int, words: str
) -> None:
    given = changed(field, place, value)
    before = calls.contents()
    own = calls.writers if field == "slot_mapping" else calls.readers
    for name, call in (own | calls.both).items():
        with pytest.raises(BadIndex, match=rf"^a step names {words} \(the native [a-z ]*\)$") as e:
            call(given)
        assert str(value) in str(e.value), name
    for one, other in zip(calls.contents(), before, strict=True):
        assert torch.equal(one, other)


def test_a_cache_that_has_no_blocks_yet(calls: Calls, library: NativeLibrary) -> None:
    kv = cache(blocks=0)
    x, angles = normal(ROWS, HIDDEN, seed=1), normal(ROWS, PAIRS, seed=2)
    with pytest.raises(BadIndex, match="a step names slot 17 of 0 "):
        calls.programs.layer(x, angles, kv, batch())
    with pytest.raises(BadIndex, match="a step names block 3 of 0 "):
        NativeAttention(library).attend(normal(ROWS, HEADS, HEAD_DIM, seed=4), kv, batch(), OPTIONS)


@pytest.mark.parametrize("rows", [0, 1, 3, 5])
def test_tensors_of_other_rows_than_the_batch(library: NativeLibrary, rows: int) -> None:
    backend, kv = NativeAttention(library), cache()
    layer = Programs(library).layer
    x, angles = normal(rows, HIDDEN, seed=1), normal(rows, PAIRS, seed=2)
    keys = normal(rows, KV_HEADS, HEAD_DIM, seed=5)
    heads = normal(ROWS, HEADS, HEAD_DIM, seed=4)
    for call in (
        lambda: elementwise.rotate(library, heads, angles, angles, interleaved=False),
        lambda: backend.attend(normal(rows, HEADS, HEAD_DIM, seed=4), kv, batch(), OPTIONS),
        lambda: backend.write(kv, batch(), keys, keys),
        lambda: layer(x, angles, kv, batch()),
        lambda: layer(normal(ROWS, HIDDEN, seed=1), angles, kv, batch()),
    ):
        with pytest.raises(BadIndex, match="a step names rows "):
            call()


@pytest.mark.parametrize("token", [VOCABULARY, -1, INT64 - 1, -INT64])
def test_a_token_without_an_embedding(calls: Calls, token: int) -> None:
    with pytest.raises(BadIndex, match=f"a step names row {token} of {VOCABULARY} "):
        calls.ask(batch(), token=token)
    with pytest.raises(BadIndex, match=f"a step names row {token} of {VOCABULARY} "):
        packed(normal(VOCABULARY, HIDDEN, seed=1), 1).rows(torch.tensor([0, token]), torch.float32)


@pytest.mark.parametrize("position", [POSITIONS, -1, INT64 - 1, -INT64])
def test_a_position_without_angles(calls: Calls, position: int) -> None:
    with pytest.raises(BadIndex, match=f"a step names position {position} of {POSITIONS} "):
        calls.ask(batch(), position=position)


@pytest.mark.parametrize(
    "starts", [(0, 2, 5), (0, 2, 3), (1, 2, 4), (0, 3, 2), (0, -1, 4), (0, INT32 - 1, 4)], ids=str
)
@pytest.mark.parametrize("kind", MIXERS)
def test_states_of_other_rows(library: NativeLibrary, kind: str, starts: tuple[int, ...]) -> None:
    layer = Layer(MIXERS[kind], Mlp(256), Norm(1e-5))
    graph = native_graph(layer, HIDDEN, lambda slot: True)
    weights = program_weights(weights_of(spec_of(layer, 1)).under("layers.0."))
    program = NativeProgram(library, program_of(graph.operations, graph), weights)
    states = [normal(2, 40_000, seed=seed) for seed in range(2)]
    before = [each.clone() for each in states]
    recent, state = ([each[part].data_ptr() for each in states] for part in range(2))
    given = NativeStates.of((ctypes.c_int32 * 3)(*starts), recent, state)
    with pytest.raises(BadIndex, match=r"a step names first row -?[0-9]+ of 4 "):
        NativeRun([program], [None])(normal(ROWS, HIDDEN, seed=1), [CacheAccess(states=given)])
    assert all(map(torch.equal, states, before))


@pytest.mark.parametrize("field", ["query_start", "context_lens", "attention_ends"])
def test_tensors_that_are_too_short_or_of_another_type(field: str) -> None:
    given = batch(torch.tensor([19, 19, 19, 0]))
    numbers = getattr(given, field)
    other = torch.int32 if numbers.dtype is torch.int64 else torch.int64
    for wrong in (numbers[:-1], numbers.to(other), numbers.repeat(2)[::2]):
        with pytest.raises(ValueError, match="is not"):
            _ = replace(given, **{field: wrong}).native
