"""Prompts are scored by several processes as by one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from ordered_reference import ordered_reference
from test_exact import VOCABULARY
from test_shared_exact import model_of, shared_request

from mrs.engine.engine import Engine
from mrs.engine.prompt_scores import ScoredToken
from support.engines import Asked
from support.tiny_decoders import GREEDY

#: Prompts of several chunks and pieces of logits, one beside the other.
LENGTHS = (70, 21)


def scores(engine: Engine) -> list[list[ScoredToken]]:
    chance = random.Random(3)
    prompts = [[chance.randrange(VOCABULARY) for _ in range(length)] for length in LENGTHS]
    sampling = replace(GREEDY, max_tokens=3, prompt_logprobs=2)
    asked = [Asked.of(engine, ids, sampling) for ids in prompts]
    for each in asked:
        each.finish()
    found = [each.sequence.prompt_scores for each in asked]
    return [each.tokens for each in found if each is not None]


def test_layers_in_several_processes(workers: Workers, tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    expected = scores(engine_of(single_decoder(request_for(model, None, 0)), chunk_tokens=32))
    assert list(map(len, expected)) == [length - 1 for length in LENGTHS]
    with cluster_decoder(request_for(model, workers.port, 1)) as (decoder, _):
        assert scores(engine_of(decoder, chunk_tokens=32)) == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "size"),
    [(4, 2), *(pytest.param(*each, marks=pytest.mark.full) for each in ((2, 2), (3, 3)))],
)
def test_shares_of_layers(ranks: int, size: int, workers: Workers, tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    reference = ordered_reference(request_for(model, None, 0), size)
    expected = scores(engine_of(reference, chunk_tokens=32))
    with cluster_decoder(shared_request(model, workers.port, ranks, size)) as (decoder, _):
        assert scores(engine_of(decoder, chunk_tokens=32)) == expected
