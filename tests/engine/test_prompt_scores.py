"""The tokens of prompts are scored as the model's logits say, however they are computed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mrs.engine.engine import Engine
from mrs.engine.prompt_scores import ScoredToken
from mrs.engine.sequence import Sequence, SequenceRequest
from mrs.errors import ContextFull
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from support.engines import Asked, make_engine
from support.tiny_decoders import GREEDY, VOCABULARY, tiny_decoder

KINDS = ["dense", "window", "hybrid", "delta", "latent", "longrope", "dynamic"]
SCORED = replace(GREEDY, max_tokens=0, prompt_logprobs=3)
#: Scores are far from each other in these models: random weights.
CLOSE = 1e-4


def prompt_of(length: int, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


def engine_of(decoder: Decoder, **settings: Any) -> Engine:
    given = {"context_tokens": 400, "planned_tokens": 300, "chunk_tokens": 16}
    return make_engine(decoder, **{**given, **settings})


@torch.inference_mode()
def exact(decoder: Decoder, ids: list[int]) -> Tensor:
    """The logarithms of probabilities (tokens - 1, vocabulary), in float64, from one step."""
    cache = decoder.new_cache(len(ids), len(ids))
    rows = range(len(ids) - 1)
    whole = SequenceInput(cache, ids, length=len(ids), logits_rows=rows)
    return decoder.forward(forward_batch([whole]), [cache]).double().log_softmax(1)


def scores(sequence: Sequence) -> list[ScoredToken]:
    assert sequence.prompt_scores is not None
    return sequence.prompt_scores.tokens


def scored(engine: Engine, ids: list[int], **changes: Any) -> list[ScoredToken]:
    asked = Asked.of(engine, ids, replace(SCORED, **changes))
    asked.finish()
    return scores(asked.sequence)


def require_exact(found: list[ScoredToken], ids: list[int], wanted: Tensor) -> None:
    assert [each.id for each in found] == ids[1:]
    for token, row in zip(found, wanted, strict=True):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=CLOSE)
        assert token.rank == int((row > row[token.id]).sum()) + 1
        assert [id for id, _ in token.top] == row.argsort(descending=True)[:3].tolist()
        assert [value for _, value in token.top] == pytest.approx(
            row.sort(descending=True).values[:3].tolist(), abs=CLOSE
        )


@pytest.mark.few(9)
@pytest.mark.parametrize("chunk", [5, 16, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_each_token_of_a_prompt_has_the_log_softmax_before_it(kind: str, chunk: int) -> None:
    decoder, ids = tiny_decoder(kind), prompt_of(61)
    require_exact(scored(engine_of(decoder, chunk_tokens=chunk), ids), ids, exact(decoder, ids))


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_prefix_cache_has_is_scored_too(kind: str) -> None:
    """And a scored prompt is remembered for others."""
    decoder, ids = tiny_decoder(kind), prompt_of(61)
    engine = engine_of(decoder, prefix_cache_n=4)
    wanted = exact(decoder, ids)
    for _ in range(2):
        require_exact(scored(engine, ids), ids, wanted)
    later = Asked.of(engine, [*ids, 3], replace(GREEDY, max_tokens=2))
    later.finish()
    assert (later.sequence.num_cached_tokens > 30) == (kind != "dynamic")


def test_many_prompts_and_replies_at_once_change_no_score() -> None:
    decoder = tiny_decoder("window")
    prompts = [prompt_of(length, length) for length in (40, 3, 25, 1, 60)]
    engine = engine_of(decoder, planned_seqs=8, max_seqs=8, planned_tokens=200)
    samplings = [replace(SCORED, max_tokens=count) for count in (0, 4, 9, 0, 2)]
    asked = [Asked.of(engine, *each) for each in zip(prompts, samplings, strict=True)]
    plain = Asked.of(engine, prompt_of(30, 9), replace(GREEDY, max_tokens=20))
    for each in [*asked, plain]:
        each.finish()
    for each, ids, sampling in zip(asked, prompts, samplings, strict=True):
        require_exact(scores(each.sequence), ids, exact(decoder, ids))
        assert len(each.tokens) == sampling.max_tokens
        assert each.sequence.finish_reason == "length"


def test_a_prompt_that_has_to_make_room_is_scored_all_the_same() -> None:
    decoder = tiny_decoder("dense")
    engine = engine_of(
        decoder, planned_tokens=96, context_tokens=96, pool_blocks=4, block_tokens=16, max_seqs=2
    )
    prompts = [prompt_of(30, 1), prompt_of(20, 2)]
    asked = [Asked.of(engine, each, replace(SCORED, max_tokens=30)) for each in prompts]
    for each in asked:
        each.finish()
    assert any(each.sequence.num_preemptions for each in asked)
    for each, ids in zip(asked, prompts, strict=True):
        require_exact(scores(each.sequence), ids, exact(decoder, ids))


def test_replies_to_scored_prompts_are_those_without_scores() -> None:
    decoder, ids = tiny_decoder("dense"), prompt_of(40)
    plain = Asked.of(engine_of(decoder), ids, replace(GREEDY, max_tokens=25)).finish()
    asked = Asked.of(engine_of(decoder), ids, replace(SCORED, max_tokens=25))
    assert asked.finish() == plain


def test_no_more_logits_are_computed_at_a_time_than_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[int] = []
    logits_of = Decoder._logits

    def counted(decoder: Decoder, x: Tensor) -> Tensor:
        rows.append(len(x))
        return logits_of(decoder, x)

    monkeypatch.setattr(Decoder, "_logits", counted)
    scored(engine_of(tiny_decoder("dense"), chunk_tokens=256), prompt_of(200))
    assert max(rows) == MAX_DRAFT_ROWS
    assert sum(rows) == 200


def test_a_prompt_without_a_reply_may_fill_the_context() -> None:
    decoder = tiny_decoder("dense")
    engine, ids = engine_of(decoder, context_tokens=48, planned_tokens=48), prompt_of(48)
    require_exact(scored(engine, ids), ids, exact(decoder, ids))
    with pytest.raises(ContextFull):
        engine.new_sequence(SequenceRequest(ids, replace(SCORED, max_tokens=1)))
    with pytest.raises(ContextFull):
        engine.new_sequence(SequenceRequest([*ids, 1], SCORED))


def test_a_prompt_of_one_token_has_no_scores() -> None:
    assert scored(engine_of(tiny_decoder("dense")), [7]) == []


def test_of_equal_logits_the_lower_token_comes_first() -> None:
    from mrs.engine.prompt_scores import PromptScores

    found = PromptScores([0, 3], 3)
    found.take(0, torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0]))
    (token,) = found.tokens
    assert [id for id, _ in token.top] == [1, 2, 3]
    assert token.rank == 1
