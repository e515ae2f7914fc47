"""Replies that match a grammar: their end, their tokens, and what they share."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from asking import QUESTION, ask, read, sampling_of

from mrs.engine.scheduler import ScheduledBatch
from mrs.engine.worker import StepAborted, Worker
from mrs.grammar.mask import GrammarMask
from mrs.request import Grammar, ModelSource, PagedRequest, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.engine_steps import before_each_step

FORCED = '{"the first property": 1, "the second property": "words"}'
OBJECT = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "the first property": {"enum": [1, 2]},
                "the second property": {"const": "words"},
            },
            "required": ["the first property", "the second property"],
            "additionalProperties": False,
        }
    ),
)
SENTENCES = Grammar("regex", r"([A-Z][a-z]{2,8}( [a-z]{2,8}){2,5}\. ){3,4}")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step computes."""
    counts: list[int] = []
    forward = Worker.forward

    def counted(worker: Worker, batch: ScheduledBatch) -> torch.Tensor:
        counts[-1] = sum(each.num_tokens for each in batch)
        return forward(worker, batch)

    monkeypatch.setattr(Worker, "forward", counted)
    before_each_step(lambda: counts.append(1), monkeypatch.setattr)
    return counts


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", "(yes|no)"), "yes|no"),
        (Grammar("regex", " spaced out"), " spaced out"),
        (Grammar("regex", r"\d{3}-\d{4}"), r"\d{3}-\d{4}"),
        (Grammar("lark", 'start: "x" y+\ny: "ab" | "cd"'), "x(ab|cd)+"),
        (Grammar("llguidance", '{"grammars": [{"lark_grammar": "start: \\"q\\"+"}]}'), "q+"),
        (SENTENCES, SENTENCES.text),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_k": 3, "min_p": 0.5}])
def test_a_reply_matches(model: LoadedModel, grammar: Grammar, pattern: str, settings) -> None:
    text, end = ask(model, grammar, **settings)
    assert end.reason == "stop" or len(text) > 40
    assert re.fullmatch(pattern, text) or end.reason == "length"


def test_the_end_of_the_grammar_ends_the_reply(model: LoadedModel) -> None:
    for settings in ({}, {"ignore_eos": True}, {"logprobs": 1}):
        text, end = ask(model, Grammar("regex", "abc"), **settings)
        assert (text, end.reason) == ("abc", "stop")
    text, end = ask(model, Grammar("regex", "abcabcabcabc"), max_tokens=2)
    assert end.reason == "length"
    assert "abcabcabcabc".startswith(text)


def test_a_text_before_the_end_may_go_on_or_end(model: LoadedModel) -> None:
    lengths = {len(ask(model, Grammar("regex", "a{0,4}"), seed=seed)[0]) for seed in range(30)}
    assert len(lengths) > 1


def test_the_likeliest_reply_stays_if_it_matches(model: LoadedModel) -> None:
    free, _ = ask(model, None, temperature=0)
    followed, _ = ask(model, Grammar("regex", r"(?s:.)*"), temperature=0)
    assert followed == free


def test_forced_text_is_computed_in_one_step(model: LoadedModel, steps: list[int]) -> None:
    text, end = ask(model, OBJECT)
    assert text.replace("2", "1", 1) == FORCED
    assert end.usage.completion_tokens > 20
    decoded = steps[1:]
    assert len(decoded) < end.usage.completion_tokens / 2
    assert max(decoded) > 5
    assert end.usage.planned is None, "it would not be the rate of decoding"


def test_with_logprobs_each_token_has_its_own(model: LoadedModel, steps: list[int]) -> None:
    *deltas, end = model.stream_chat(QUESTION, sampling_of(OBJECT, logprobs=2))
    logprobs = [each for delta in deltas for each in delta.logprobs]
    assert b"".join(each.token for each in logprobs).decode() == "".join(d.text for d in deltas)
    assert len(logprobs) == end.usage.completion_tokens
    assert len(logprobs) == len(steps) + end.usage.accepted_tokens, "none is forced"
    assert min(each.logprob for each in logprobs) < -5, "the model's own, without the mask"


def test_a_stop_string_ends_it_earlier(model: LoadedModel) -> None:
    text, end = ask(model, OBJECT, stop=("second",))
    assert (text.replace("2", "1", 1), end.reason) == (FORCED[: FORCED.index("second")], "stop")


def test_many_replies_at_once_match_each_their_own(model: LoadedModel) -> None:
    patterns = ["(ab|cd){3,20}", "[x-z]{5,30}", "The end", r"(\d\d, ){4}"]
    samplings = [sampling_of(Grammar("regex", each), seed=n) for n, each in enumerate(patterns * 4)]
    streams = [model.stream_chat(QUESTION, each) for each in [*samplings, sampling_of(None)]]
    texts = [read(each)[0] for each in streams]
    assert all(
        re.fullmatch(each.grammar.text, text)
        for each, text in zip(samplings, texts, strict=False)
        if each.grammar
    )
    assert len(set(texts[: len(patterns)])) == len(patterns)


@pytest.fixture
def small_model() -> Iterator[LoadedModel]:
    """A pool that two replies outgrow, so that one is preempted."""
    paged = PagedRequest(pool=True, context_tokens=192, block_tokens=16)
    request = RunRequest(ModelSource("demo", "safetensors"), cpu=True, paged=paged)
    made = ModelLoader(request).load()
    yield made
    made.close()


def test_a_preempted_reply_goes_on_where_it_was(
    small_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = r"([A-Z][a-z]{2,8}( [a-z]{2,8}){2,5}\. ){4}"
    forward, all_wait = Worker.forward, threading.Event()

    def waits(worker: Worker, batch: ScheduledBatch) -> torch.Tensor:
        assert all_wait.wait(60)
        return forward(worker, batch)

    monkeypatch.setattr(Worker, "forward", waits)
    streams = [
        small_model.stream_chat(QUESTION, sampling_of(Grammar("regex", pattern), seed=n))
        for n in range(4)
    ]
    all_wait.set()
    assert all(re.fullmatch(pattern, read(each)[0]) for each in streams)
    assert small_model.engine.stats.preempted > 0


def test_an_error_ends_one_reply_alone(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = ask(model, OBJECT)

    def fails(mask: GrammarMask, logits: object) -> None:
        raise MemoryError

    monkeypatch.setattr(GrammarMask, "__call__", fails)
    with pytest.raises(MemoryError):
        ask(model, OBJECT)
    monkeypatch.undo()
    assert ask(model, OBJECT)[0] == expected


def test_an_interrupted_step_is_computed_again(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes back to before the step; the grammar has only tokens that were chosen."""
    forward, failed = Worker.forward, []

    def fails_once(worker: Worker, batch: ScheduledBatch) -> torch.Tensor:
        logits = forward(worker, batch)
        if batch[0].sequence.num_new_tokens > 8 and not failed:
            failed.append(batch)
            raise StepAborted
        return logits

    monkeypatch.setattr(Worker, "forward", fails_once)
    text, end = ask(model, OBJECT)
    assert failed
    assert (text.replace("2", "1", 1), end.reason) == (FORCED, "stop")


def test_compiled_grammars_are_used_again(model: LoadedModel) -> None:
    compiled = model.prompts._grammars._remembered
    for number in range(40):
        ask(model, Grammar("regex", f"a{{{number + 1}}}"))
    assert len(compiled) <= 32
    before = set(compiled)
    ask(model, Grammar("regex", "a{40}"))
    assert set(compiled) == before


def test_many_threads_may_ask_at_once(model: LoadedModel) -> None:
    patterns = ["a{3}", "b{3}", "a{3}", "c{3}", "b{3}", "a{3}", "d{3}", "a{3}"]
    with ThreadPoolExecutor(8) as threads:
        texts = threads.map(lambda each: ask(model, Grammar("regex", each))[0], patterns)
        assert list(texts) == [each[0] * 3 for each in patterns]
