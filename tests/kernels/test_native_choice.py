"""Native attention to the keys that an indexer chooses."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from test_native_layers import LATENT, unexpanded
from test_steps import batch_of, normal
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.errors import BadIndex
from mrs.graph.layer_graph import native_graph
from mrs.graph.operations import STREAM, Attend, ChooseKeys, ChosenKeys, Graph, WriteCache
from mrs.graph.program import program_of
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.paged import PagedKV
from mrs.layers.attention.spec import Attention
from mrs.layers.latent_attention.spec import BorrowedChoiceAttention, IndexedAttention, Indexer
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.native_program import CacheAccess, NativeProgram, NativeRun, Weights
from mrs.plan.memory.cache_size import CacheSize
from support.packed_layers import VOCABULARY, spec_of, weights_of

CPU = torch.device("cpu")
HEADS, INDEX_HEADS, INDEX_DIM, KEY_DIM, VALUE_DIM = 3, 11, 32, 48, 32
TOP_K, BLOCK = 70, 16
#: Length and new tokens of each sequence; the first has fewer tokens than are chosen.
SEQUENCES = ((40, 5), (1500, 1), (300, 40), (72, 72))
WIDTHS = (INDEX_HEADS * INDEX_DIM, INDEX_HEADS, HEADS * KEY_DIM, INDEX_DIM, KEY_DIM)


def cache(dim: int, value_dim: int, dtype: torch.dtype) -> PagedKV:
    kv = PagedKV(
        *(1, dim, value_dim),
        block_tokens=BLOCK,
        dtype=dtype,
        device=CPU,
        values_in_keys=True,
    )
    kv.resize(sum(-(-length // BLOCK) for length, _ in SEQUENCES))
    return kv


def slots() -> list[Tensor]:
    """Of each sequence's tokens; its blocks are anywhere."""
    counts = [-(-length // BLOCK) for length, _ in SEQUENCES]
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).split(counts)
    return [
        own[torch.arange(length) // BLOCK] * BLOCK + torch.arange(length) % BLOCK
        for own, (length, _) in zip(blocks, SEQUENCES, strict=True)
    ]


def run(library: NativeLibrary, rows: Tensor, access: CacheAccess) -> Tensor:
    """What chosen keys give, (N, HEADS * VALUE_DIM)."""
    graph = Graph(sum(WIDTHS))
    queries, weights, q, index_keys, keys = graph.split(STREAM, WIDTHS)
    choice, out = graph.given_value(TOP_K, ChosenKeys(TOP_K)), graph.value(HEADS * VALUE_DIM)
    attention = Attention(HEADS, 1, KEY_DIM, 0.2, None, value_head_dim=VALUE_DIM)
    graph.add(
        WriteCache(index_keys, None, 1, is_index=True),
        WriteCache(keys, None, 1),
        ChooseKeys(queries, weights, choice, INDEX_HEADS),
        Attend(q, out, attention, choice),
    )
    program = program_of(graph.operations, graph, out)
    none = Weights(lambda slot: None, lambda slot: None)  # type: ignore[arg-type, return-value]
    result = torch.empty(len(rows), HEADS * VALUE_DIM)
    NativeRun([NativeProgram(library, program, none)], [None])(rows, [access], result=result)
    return result


def best_keys(scores: Tensor) -> Tensor:
    """The positions of the best of scores (S): of equal ones the first, in ascending order."""
    return scores.sort(descending=True, stable=True).indices[:TOP_K].sort().values


@pytest.mark.few(9)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_chooses_and_attends(library: NativeLibrary, dtype: torch.dtype) -> None:
    """Small whole numbers have exact scores, and many of them are equal."""
    torch.set_num_threads(2)
    places = slots()
    index_kv, kv = cache(INDEX_DIM, INDEX_DIM, dtype), cache(KEY_DIM, VALUE_DIM, dtype)
    all_keys = [
        normal(length, INDEX_DIM + KEY_DIM, seed=n).to(dtype).float()
        for n, (length, _) in enumerate(SEQUENCES)
    ]
    for keys in all_keys:
        keys[:, :INDEX_DIM].round_()
    for own, keys in zip(places, all_keys, strict=True):
        index_kv.write(own, (keys[:, None, :INDEX_DIM].to(dtype),))
        kv.write(own, (keys[:, None, INDEX_DIM:].to(dtype),))
    count = sum(new for _, new in SEQUENCES)
    queries = normal(count, INDEX_HEADS, INDEX_DIM, seed=9).round()
    weights = (normal(count, INDEX_HEADS, seed=10) * 4).round() / 4
    q = normal(count, HEADS, KEY_DIM, seed=11) * 2
    new_keys = torch.cat([x[-new:] for x, (_, new) in zip(all_keys, SEQUENCES, strict=True)])
    rows = torch.cat((queries.flatten(1), weights, q.flatten(1), new_keys), dim=1)
    batch = batch_of([(own, new) for own, (_, new) in zip(places, SEQUENCES, strict=True)], BLOCK)
    given = torch.zeros(count, TOP_K)
    result = run(library, rows, CacheAccess(kv, batch, given=given, index_cache=index_kv))
    chosen, row = given.view(torch.int32), 0
    for keys, (length, new) in zip(all_keys, SEQUENCES, strict=True):
        for own in range(length - new, length):
            seen = keys[: own + 1].double()
            products = queries[row].double() @ seen[:, :INDEX_DIM].T
            best = best_keys(weights[row].double() @ products.relu())
            if length > TOP_K:
                assert torch.equal(chosen[row, : len(best)].long(), best), (length, own)
            attended = seen[best, INDEX_DIM:]
            shares = (q[row].double() @ attended.T * 0.2).softmax(-1)
            expected = (shares @ attended[:, :VALUE_DIM]).flatten()
            torch.testing.assert_close(result[row].double(), expected, rtol=1e-4, atol=1e-5)
            row += 1


@pytest.mark.parametrize("position", [-1, 300, (1 << 31) - 1, -(1 << 31)])
def test_a_choice_of_positions_that_are_not_there(library: NativeLibrary, position: int) -> None:
    """The third sequence's choices are wrong; those of the first are not read."""
    graph = Graph(HEADS * KEY_DIM)
    choice, out = graph.given_value(TOP_K, ChosenKeys(TOP_K)), graph.value(HEADS * VALUE_DIM)
    attention = Attention(HEADS, 1, KEY_DIM, 0.2, None, value_head_dim=VALUE_DIM)
    graph.add(Attend(STREAM, out, attention, choice))
    program = program_of(graph.operations, graph, out)
    none = Weights(lambda slot: None, lambda slot: None)  # type: ignore[arg-type, return-value]
    attend = NativeRun([NativeProgram(library, program, none)], [None])
    kv = cache(KEY_DIM, VALUE_DIM, torch.float32)
    kv.keys.zero_()
    new = [new for _, new in SEQUENCES]
    batch = batch_of(list(zip(slots(), new, strict=True)), BLOCK)
    given = torch.zeros(sum(new), TOP_K, dtype=torch.int32)
    given[: new[0]] = position
    access = CacheAccess(kv, batch, given=given.view(torch.float32))
    rows, result = torch.zeros(len(given), HEADS * KEY_DIM), torch.empty(len(given), HEADS * 32)
    attend(rows, [access], result=result)
    given[new[0] + new[1] + 39, TOP_K - 1] = position
    with pytest.raises(BadIndex, match=f"a step names chosen position {position} of 300 "):
        attend(rows, [access], result=result)


def test_an_indexer_without_the_blocks_of_its_layer(library: NativeLibrary) -> None:
    """Nothing is written to any of the two caches."""
    kv, index_kv = (cache(dim, 32, torch.float32) for dim in (KEY_DIM, INDEX_DIM))
    blocks = len(kv.keys)
    index_kv.resize(blocks - 1)
    for each in (kv, index_kv):
        each.keys.zero_()
    new = [new for _, new in SEQUENCES]
    batch = batch_of(list(zip(slots(), new, strict=True)), BLOCK)
    given = torch.zeros(sum(new), TOP_K)
    access = CacheAccess(kv, batch, given=given, index_cache=index_kv)
    with pytest.raises(BadIndex, match=rf"a step names (slot|block) .* of .*{blocks - 1}"):
        run(library, torch.ones(sum(new), sum(WIDTHS)), access)
    assert not kv.keys.any()
    assert not index_kv.keys.any()


INDEXED = IndexedAttention(
    *(LATENT.heads, LATENT.qk_nope_head_dim, LATENT.v_head_dim, LATENT.kv_lora_rank),
    *(LATENT.q_lora_rank, LATENT.scale, LATENT.rope, LATENT.norm),
    indexer=Indexer(16, 32, 24, interleaved=False, norm=Norm(1e-5, "layer", bias=True)),
)
BORROWED = BorrowedChoiceAttention(
    *(LATENT.heads, LATENT.qk_nope_head_dim, LATENT.v_head_dim, LATENT.kv_lora_rank),
    *(LATENT.q_lora_rank, LATENT.scale, LATENT.rope, LATENT.norm),
    top_k=24,
)
NORM = Norm(1e-5)
LAYER = Layer(INDEXED, Mlp(256), NORM)
LENT = (
    replace(LAYER, mixer=replace(INDEXED, lends_choice=True)),
    replace(LAYER, mixer=BORROWED),
)
SPECS = {
    "own": spec_of(LAYER, 2),
    "lent": replace(spec_of(LAYER, 4), layers=LENT * 2),
}


@torch.inference_mode()
def logits(decoder: Decoder, counts: tuple[int, ...]) -> Tensor:
    """Of a sequence that comes in pieces."""
    cache, found, start = decoder.new_cache(128, chunk_tokens=128), [], 0
    for count in counts:
        ids = [(7 * n * n + 3) % VOCABULARY for n in range(start, start + count)]
        fed = SequenceInput(cache, ids, logits_rows=range(count))
        found.append(decoder.forward(forward_batch([fed]), [cache]))
        start += count
    return torch.cat(found)


def decoder(
    spec: ModelSpec, by_torch: type[object] | None = object, format_name: str | None = None
) -> Decoder:
    """With torch for layers whose mixers are of that class."""

    def graph(layer: Layer, *args, **options):
        of_torch = by_torch is not None and isinstance(layer.mixer, by_torch)
        return (unexpanded if of_torch else native_graph)(layer, *args, **options)

    with patch("mrs.model.decoder_layer.native_graph", graph):
        return Decoder(spec, weights_of(spec, format_name), [CPU] * len(spec.layers), torch.float32)


@pytest.mark.few(4)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_layers_are_near_those_of_torch(library: NativeLibrary, spec: ModelSpec) -> None:
    """With weights in float32: activations in 8 bits make the last bits of a value large ones."""
    native, by_torch = (decoder(spec, kind, "F32") for kind in (None, object))
    assert list(native.stack.runs) == [0]
    assert not by_torch.stack.runs
    counts = (9, 20, 1, 40, 1, 1)
    expected = logits(by_torch, counts)
    torch.testing.assert_close(logits(native, counts), expected, rtol=1e-4, atol=1e-4)
    for kind in (IndexedAttention, BorrowedChoiceAttention):
        mixed = logits(decoder(spec, kind, "F32"), counts)
        torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.few(4)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_pieces_and_threads_change_no_bits(library: NativeLibrary, spec: ModelSpec) -> None:
    native = decoder(spec, None)
    torch.set_num_threads(1)
    whole = logits(native, (72,))
    torch.set_num_threads(3)
    assert torch.equal(logits(native, (72,)), whole)
    for counts in ((30, 1, 1, 40), (1,) * 30 + (42,), (25, 17, 30)):
        assert torch.equal(logits(native, counts), whole)


@pytest.mark.few(5)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@torch.inference_mode()
def test_company_and_rejected_tokens_change_no_bits(
    library: NativeLibrary, spec: ModelSpec
) -> None:
    native = decoder(spec, None)
    alone = logits(native, (50, 4))
    space = native.new_space(CacheSize(128, 4, 128))
    caches = [space.new() for _ in range(3)]
    ids = [(7 * n * n + 3) % VOCABULARY for n in range(54)]
    others = [[5] * 60, ids[:50], [3] * 10]

    def step(tokens: list[list[int]]) -> Tensor:
        fed = [
            SequenceInput(cache, own, logits_rows=range(len(own)))
            for cache, own in zip(caches, tokens, strict=True)
        ]
        return native.forward(forward_batch(fed), caches)

    assert torch.equal(step(others)[60:110], alone[:50])
    step([[1], [9, 8, 7], [2]])
    caches[1].rewind(50)
    assert torch.equal(step([[1], ids[50:], [2]])[1:5], alone[50:])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@torch.inference_mode()
def test_torch_attends_in_company_as_alone(spec: ModelSpec) -> None:
    """A sequence with fewer tokens than are chosen, beside one with more."""
    by_torch = decoder(spec, object, "F32")
    ids = [(7 * n * n + 3) % VOCABULARY for n in range(54)]
    space = by_torch.new_space(CacheSize(128, 4, 128))
    caches = [space.new() for _ in range(2)]
    found: list[list[Tensor]] = [[], []]
    for counts in ((9, 50), (5, 4)):
        fed = [
            SequenceInput(own, ids[own.length : own.length + count], logits_rows=range(count))
            for own, count in zip(caches, counts, strict=True)
        ]
        rows = by_torch.forward(forward_batch(fed), caches).split(counts)
        for each, own in zip(found, rows, strict=True):
            each.append(own)
    for counts, together in (((9, 5), found[0]), ((50, 4), found[1])):
        torch.testing.assert_close(
            torch.cat(together), logits(by_torch, counts), rtol=1e-4, atol=1e-4
        )
