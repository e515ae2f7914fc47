"""A reply's events: its text, its end, and every way to stop it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from mrs.engine.engine import Engine
from mrs.events import Finished, TextDelta
from mrs.request import Message, ModelSource, RunRequest, Sampling
from mrs.runner import LoadedModel, load

LIKELIEST = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0)
QUESTION: list[Message] = [{"role": "user", "content": "What is a KV cache?"}]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    made = load(RunRequest(ModelSource("demo", "safetensors"), cpu=True))
    yield made
    made.close()
    torch.set_num_threads(before)


def events(model: LoadedModel) -> tuple[str, Finished]:
    *deltas, end = model.stream_chat(QUESTION, LIKELIEST)
    assert all(isinstance(each, TextDelta) for each in deltas)
    assert isinstance(end, Finished)
    return "".join(each.text for each in deltas), end


def interrupt(monkeypatch: pytest.MonkeyPatch, at_step: int) -> None:
    step, steps = Engine._step, 0

    def interrupted(engine: Engine) -> None:
        nonlocal steps
        steps += 1
        if steps == at_step:
            raise KeyboardInterrupt
        step(engine)

    monkeypatch.setattr(Engine, "_step", interrupted)


def test_a_reply_ends_with_its_figures(model: LoadedModel) -> None:
    text, end = events(model)
    assert text.startswith("The **KV cache** keeps")
    assert end.reason == "stop"
    assert end.usage.prompt_tokens == model.prompt_tokens(QUESTION)
    assert end.usage.completion_tokens > 10


def test_what_was_planned_stands_beside_what_was_measured(model: LoadedModel) -> None:
    _, end = events(model)
    again = events(model)[1].usage
    assert end.usage.planned is not None
    assert end.usage.planned.completion_tokens_per_s == model.plan.speed.decode
    assert again.cached_tokens > 0
    assert again.planned is not None
    fed = again.prompt_tokens - again.cached_tokens
    assert again.planned.prompt_tokens_per_s == model.plan.speed.prompt_of(fed)


def test_replies_that_share_steps_were_not_planned_for(model: LoadedModel) -> None:
    two = [model.stream_chat(QUESTION, LIKELIEST) for _ in range(2)]
    for reply in two:
        *_, end = reply
        assert isinstance(end, Finished)
        assert end.usage.planned is None


def test_the_next_turn_is_remembered(model: LoadedModel) -> None:
    text, end = events(model)
    turns: list[Message] = [
        *QUESTION,
        {"role": "assistant", "content": text},
        {"role": "user", "content": "And what is a token?"},
    ]
    *_, after = model.stream_chat(turns, LIKELIEST)
    first = end.usage.prompt_tokens + end.usage.completion_tokens
    assert isinstance(after, Finished)
    # The token that ended the first reply was never fed.
    assert after.usage.cached_tokens == first - 1


@pytest.mark.parametrize("at_step", [1, 2, 5])
def test_an_interruption_ends_the_reply_and_nothing_else(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, at_step: int
) -> None:
    whole, _ = events(model)
    with monkeypatch.context() as patch:
        interrupt(patch, at_step)
        text, end = events(model)
    assert end.reason == "cancelled"
    assert end.usage.completion_tokens == at_step - 1
    assert whole.startswith(text)
    assert (text == "") == (at_step == 1)
    assert events(model)[0] == whole


def test_a_closed_reply_says_nothing_more(model: LoadedModel) -> None:
    reply = model.stream_chat(QUESTION, LIKELIEST)
    assert isinstance(next(reply), TextDelta)
    reply.close()
    assert list(reply) == []


def test_a_reply_that_nobody_reads_is_not_made(model: LoadedModel) -> None:
    begun = [model.stream_chat(QUESTION, LIKELIEST) for _ in range(3)]
    kept = begun.pop()
    del begun
    gc.collect()
    *_, end = kept
    assert isinstance(end, Finished)
    engine = model.engine
    model.stream_chat(QUESTION, LIKELIEST)
    gc.collect()
    events(model)
    assert not engine._schedule.running
    assert not engine._schedule.waiting


def test_replies_that_were_begun_are_made_together(model: LoadedModel) -> None:
    topics = ["a token", "a GPU", "attention"]
    asked: list[list[Message]] = [
        [{"role": "user", "content": f"What is {topic}?"}] for topic in topics
    ]
    alone = [[*model.stream_chat(each, LIKELIEST)][:-1] for each in asked]
    begun = [model.stream_chat(each, LIKELIEST) for each in asked]
    list(begun[0])
    assert all(reply._progress.events for reply in begun[1:])
    begun[0] = model.stream_chat(asked[0], LIKELIEST)
    assert [[*reply][:-1] for reply in begun] == alone
