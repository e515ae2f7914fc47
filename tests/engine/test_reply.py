"""A reply's events: its text, its end, and every way to stop it."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from mrs.engine.loop import TokenStream
from mrs.engine.scheduler import ScheduledBatch
from mrs.engine.sequence import DeadlineExceeded, TokenOutput
from mrs.engine.worker import Worker
from mrs.events import Finished, ReplyUsage, TextDelta
from mrs.kernels.cpu.library import is_available
from mrs.model.native_layers import NativeSteps
from mrs.request import Message, ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.waiting import until

LIKELIEST = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0)
QUESTION: list[Message] = [{"role": "user", "content": "What is a KV cache?"}]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    made = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    yield made
    made.close()


def events(model: LoadedModel) -> tuple[str, Finished]:
    *deltas, end = model.stream_chat(QUESTION, LIKELIEST)
    assert all(isinstance(each, TextDelta) for each in deltas)
    assert isinstance(end, Finished)
    return "".join(each.text for each in deltas), end


def interrupt(monkeypatch: pytest.MonkeyPatch, at_token: int) -> None:
    """Let a KeyboardInterrupt come while a reader waits for that token."""
    take, taken = TokenStream.__next__, 0

    def interrupted(stream: TokenStream) -> TokenOutput:
        nonlocal taken
        taken += 1
        if taken == at_token:
            raise KeyboardInterrupt
        return take(stream)

    monkeypatch.setattr(TokenStream, "__next__", interrupted)


def wait_until_idle(model: LoadedModel) -> None:
    until(lambda: model.engine.stats[:2] == (0, 0))


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
    middle = end.usage.prompt_tokens + end.usage.completion_tokens // 2
    decode = model.plan.speed.decode_at(middle)
    assert end.usage.planned.completion_tokens_per_s == (decode.low, decode.high)
    assert again.cached_tokens > 0
    assert again.planned is not None
    assert again.planned.prompt_tokens_per_s is None, "a few tokens have no rate"
    *_, end = model.stream_completion("long " * 200, Sampling(max_tokens=2))
    prompt = model.plan.speed.prompt_of(end.usage.prompt_tokens - end.usage.cached_tokens)
    assert end.usage.planned.prompt_tokens_per_s == (prompt.low, prompt.high)


def test_replies_that_share_steps_were_not_planned_for(model: LoadedModel) -> None:
    # So long that the first has not ended when the second begins.
    long = replace(LIKELIEST, ignore_eos=True, max_tokens=300)
    asked: list[Message] = [{"role": "user", "content": "Count for a long time"}]
    two = [model.stream_chat(asked, long) for _ in range(2)]
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


@pytest.mark.parametrize("at_token", [1, 2, 5])
def test_an_interruption_ends_the_reply_and_nothing_else(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, at_token: int
) -> None:
    whole, _ = events(model)
    with monkeypatch.context() as patch:
        interrupt(patch, at_token)
        text, end = events(model)
    assert end.reason == "cancelled"
    assert end.usage.completion_tokens == at_token - 1
    assert whole.startswith(text)
    assert (text == "") == (at_token == 1)
    assert events(model)[0] == whole


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("computer", "method", "at_step"), [(Worker, "forward", 2), (NativeSteps, "next", 4)]
)
def test_ctrl_c_does_not_wait_for_the_step_in_flight(
    model: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    computer: type,
    method: str,
    at_step: int,
) -> None:
    """The step goes on until the reply is over, which aborts its sequence.

    It is a step for itself, or one of a burst.
    """
    if computer is NativeSteps and not is_available():
        pytest.skip("the native kernels were not built")
    compute, steps, outcomes = getattr(computer, method), 0, []
    main = threading.main_thread().ident
    assert main is not None

    def interrupting(self: object, argument: object) -> object:
        nonlocal steps
        steps += 1
        if steps == at_step:
            [sequence] = model.engine._engine.scheduler.running
            # A signal that comes just before a thread begins to wait does not end its waiting.
            time.sleep(1.0)
            signal.pthread_kill(main, signal.SIGINT)
            deadline_s = time.monotonic() + 120
            while not sequence.is_aborted and time.monotonic() < deadline_s:
                time.sleep(0.001)
            outcomes.append(sequence.is_aborted)
        return compute(self, argument)

    whole, _ = events(model)
    with monkeypatch.context() as patch:
        patch.setattr(computer, method, interrupting)
        text, end = events(model)
        wait_until_idle(model)
    assert outcomes == [True]
    assert end.reason == "cancelled"
    assert whole.startswith(text)
    assert events(model)[0] == whole


def test_text_that_is_read_late_changes_no_figure(model: LoadedModel) -> None:
    """Tokens are timed when they are made."""
    start_s = time.perf_counter()
    reply = model.stream_chat(QUESTION, LIKELIEST)
    next(reply)
    wait_until_idle(model)
    made_s = time.perf_counter() - start_s
    time.sleep(0.2)
    *_, end = reply
    assert isinstance(end, Finished)
    assert end.usage.prompt_s + end.usage.completion_s < made_s + 0.1


def test_a_stop_text_ends_the_sequence(model: LoadedModel) -> None:
    *_, end = model.stream_chat(QUESTION, replace(LIKELIEST, stop=("cache",)))
    assert isinstance(end, Finished)
    assert end.reason == "stop"
    wait_until_idle(model)


def test_a_late_reply_fails(model: LoadedModel) -> None:
    with pytest.raises(DeadlineExceeded, match="time limit"):
        list(model.stream_chat(QUESTION, LIKELIEST, timeout_s=0.0))
    wait_until_idle(model)


def test_a_closed_reply_says_nothing_more(model: LoadedModel) -> None:
    reply = model.stream_chat(QUESTION, LIKELIEST)
    assert isinstance(next(reply), TextDelta)
    reply.close()
    assert list(reply) == []


@pytest.mark.full
def test_a_reply_that_nobody_reads_is_not_made(model: LoadedModel) -> None:
    begun = [model.stream_chat(QUESTION, LIKELIEST) for _ in range(3)]
    kept = begun.pop()
    del begun
    gc.collect()
    *_, end = kept
    assert isinstance(end, Finished)
    model.stream_chat(QUESTION, LIKELIEST)
    gc.collect()
    events(model)
    wait_until_idle(model)


def test_replies_that_were_begun_are_made_together(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ["a token", "a GPU", "attention"]
    asked: list[list[Message]] = [
        [{"role": "user", "content": f"What is {topic}?"}] for topic in topics
    ]
    alone = [[*model.stream_chat(each, LIKELIEST)][:-1] for each in asked]
    forward, all_begun = Worker.forward, threading.Event()

    def waits(worker: Worker, batch: ScheduledBatch) -> torch.Tensor:
        assert all_begun.wait(60)
        return forward(worker, batch)

    monkeypatch.setattr(Worker, "forward", waits)
    begun = [model.stream_chat(each, LIKELIEST) for each in asked]
    all_begun.set()
    made = [[*reply] for reply in begun]
    assert [each[:-1] for each in made] == alone
    ends = [each[-1] for each in made]
    assert all(isinstance(end, Finished) and end.usage.planned is None for end in ends)


def repeated(model: LoadedModel, **settings: Any) -> tuple[str, ReplyUsage]:
    """A reply of one token again and again, most of them drafted."""
    token = model.tokenizer.encode("tree", allow_special=False)[-1]
    sampling = replace(LIKELIEST, logit_bias=((token, 1000.0),), ignore_eos=True, **settings)
    *found, end = model.stream_completion("One tree, two", sampling)
    assert isinstance(end, Finished)
    return "".join(each.text for each in found if isinstance(each, TextDelta)), end.usage


def test_drafts_are_counted_and_not_planned_for(model: LoadedModel) -> None:
    before = model.pace.step_s
    _, usage = repeated(model, max_tokens=60)
    assert usage.completion_tokens == 60
    assert 60 > usage.drafted_tokens >= usage.accepted_tokens > 40
    assert usage.planned is None
    assert model.pace.step_s == before


def test_a_stop_text_ends_the_reply_within_a_draft(model: LoadedModel) -> None:
    text, usage = repeated(model, max_tokens=60)
    piece = text[: len(text) // 60]
    assert piece * 60 == text
    text, usage = repeated(model, max_tokens=60, stop=(piece * 21,))
    assert text == ""
    assert usage.completion_tokens == 21
