"""Few tokens pass several layers in one call, with the results of one layer after another."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from mrs.cache.sequence_cache import SequenceCache
from mrs.engine.engine import Engine
from mrs.errors import BadIndex
from mrs.graph.layer_graph import layer_graph
from mrs.graph.operations import Graph
from mrs.graph.step_rows import FEW_TOKENS
from mrs.kernels.cpu.library import is_available
from mrs.layers.layer import Layer
from mrs.model.batch import ForwardBatch, SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.native_layers import NativeLayers, NativeModel
from mrs.plan.memory.cache_size import CacheSize
from support.engines import Asked, make_engine
from support.tiny_decoders import GREEDY, PACKED_CONFIGS, VOCABULARY, packed_decoder

pytestmark = pytest.mark.skipif(not is_available(), reason="the native kernels were not built")


#: Its third layer is computed by torch in part.
ENDS_A_RUN = "odd latent"


def runs_of(decoder: Decoder) -> list[range]:
    return [run.layer_indices for run in decoder.stack.runs.values()]


def test_layers_that_are_not_ordinary_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in PACKED_CONFIGS:
        parts = [range(2), range(3, 5)] if kind == ENDS_A_RUN else [range(5)]
        assert runs_of(packed_decoder(kind)) == parts
    monkeypatch.setattr("mrs.model.native_layers._RUN_BYTES", 60_000)  # a layer has about 42,000
    assert runs_of(packed_decoder("dense")) == [range(2), range(2, 4), range(4, 5)]


@torch.inference_mode()
def feed(decoder: Decoder, cache: SequenceCache, ids: list[int], offset: int) -> Tensor:
    fed = SequenceInput(cache, ids, offset=offset, logits_rows=range(len(ids)))
    return decoder.forward(forward_batch([fed]), [cache])


def by_layer(kind: str) -> Decoder:
    """A decoder that computes operation by operation."""

    def unexpanded(layer: Layer, hidden_size: int, is_packed: object, **options: Any) -> Graph:
        return layer_graph(layer, hidden_size, **options)

    with patch("mrs.model.decoder_layer.native_graph", unexpanded):
        decoder = packed_decoder(kind)
    decoder._native = decoder._native_head = None
    assert not decoder.stack.runs
    return decoder


def by_run(kind: str) -> Decoder:
    """A decoder that computes several layers, but not the whole model, in one call."""
    decoder = packed_decoder(kind)
    decoder._native = None
    return decoder


@pytest.mark.few("dense-0", "one latent-0", "states-0", "two mixers-0", "window-3", "dynamic-0")
@pytest.mark.values
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("kind", PACKED_CONFIGS)
def test_every_logit_is_the_same(kind: str, offset: int) -> None:
    """While caches grow and windows move on, and whatever was before."""
    chooser = random.Random(5)
    decoders = [by_layer(kind), by_run(kind), packed_decoder(kind)]
    assert (decoders[2]._native is None) == (kind == ENDS_A_RUN)
    caches = [each.new_cache(24, chunk_tokens=10) for each in decoders]
    for _ in range(40):
        ids = [chooser.randrange(VOCABULARY) for _ in range(chooser.choice([1, 1, 3, 8, 10]))]
        expected, *others = map(feed, decoders, caches, [ids] * 3, [offset] * 3)
        assert all(torch.equal(each, expected) for each in others)
        assert len({cache.length for cache in caches}) == 1
        back = caches[0].length - chooser.randrange(3)
        if all(cache.can_rewind_to(back) for cache in caches):
            for cache in caches:
                cache.rewind(back)


def test_sequences_of_a_batch_are_alone() -> None:
    """Each has its own positions, whose angles one call copies."""
    decoder = packed_decoder("dense")
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    caches = [decoder.new_cache(24, chunk_tokens=10) for _ in prompts]
    alone = [feed(decoder, cache, ids, 0)[-1] for cache, ids in zip(caches, prompts, strict=True)]
    space = decoder.new_space(CacheSize(24, 3, 10))
    together = [space.new() for _ in prompts]
    with torch.inference_mode():
        for cache, ids in zip(together, prompts, strict=True):
            if len(ids) > 1:
                feed(decoder, cache, ids[:-1], 0)
        inputs = [
            SequenceInput(cache, ids[-1:], logits_rows=range(1))
            for cache, ids in zip(together, prompts, strict=True)
        ]
        assert torch.equal(decoder.forward(forward_batch(inputs), together), torch.stack(alone))


def test_a_token_without_an_embedding_is_refused() -> None:
    decoder = packed_decoder("dense")
    with pytest.raises(BadIndex, match=f"of {VOCABULARY} "):
        feed(decoder, decoder.new_cache(24, chunk_tokens=10), [1, VOCABULARY], 0)


def test_many_tokens_pass_the_halves_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C is answered between them."""
    row_counts: list[int] = []
    original = NativeModel.__call__

    def count(self: NativeModel, batch: ForwardBatch, *rest: Any, **settings: Any) -> Tensor:
        row_counts.append(len(batch.token_ids))
        return original(self, batch, *rest, **settings)

    monkeypatch.setattr(NativeModel, "__call__", count)
    decoder = packed_decoder("dense")
    cache = decoder.new_cache(64, chunk_tokens=32)
    for tokens in (FEW_TOKENS + 1, FEW_TOKENS, 1):
        feed(decoder, cache, [1] * tokens, 0)
    assert row_counts == [FEW_TOKENS, 1]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["dense", "window"])
@pytest.mark.parametrize("call", [1, 5, 20])
@pytest.mark.parametrize("make", [by_run, packed_decoder])
def test_an_interrupted_run_is_done_again(
    make: Callable[[str], Decoder], kind: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine() -> Engine:
        return make_engine(make(kind), planned_tokens=64, context_tokens=200, chunk_tokens=10)

    prompt = [number % VOCABULARY for number in range(19)]  # a chunk of many tokens, one of few
    settings = replace(GREEDY, max_tokens=30)
    expected = Asked.of(engine(), prompt, settings).finish()
    native: Any = NativeLayers if make is by_run else NativeModel
    calls, original = 0, native.__call__

    def interrupt(self: Any, *rest: Any, **settings: Any) -> Tensor:
        nonlocal calls
        calls += 1
        out: Tensor = original(self, *rest, **settings)
        if calls == call:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(native, "__call__", interrupt)
    asked = Asked.of(engine(), prompt, settings)
    with pytest.raises(KeyboardInterrupt):
        asked.finish()
    assert asked.finish() == expected
