"""A runner for asyncio answers as the other one, in one batch, and drops what nobody waits for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mrs import (
    AsyncRunner,
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionRequest,
    Runner,
    Which,
)
from mrs.api.chunk_stream import BegunReplies
from mrs.errors import UsageError
from mrs.events import Event
from support.engine_steps import before_each_step
from support.waiting import PATIENCE_S, until

CHAT = [{"role": "user", "content": "Who are you?"}]


class Unending:
    """A reply without an event until it is closed, in the place of a runner, too."""

    def __init__(self) -> None:
        self.is_read = threading.Event()
        self.is_closed = threading.Event()

    def __next__(self) -> Event:
        self.is_read.set()
        assert self.is_closed.wait(PATIENCE_S)
        raise StopIteration

    def close(self) -> None:
        self.is_closed.set()

    def begin_completion(self, request: object, model_id: object) -> BegunReplies[Any, Any]:
        return BegunReplies([self], lambda whole: whole, lambda chunk: chunk)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Which.Plain("demo"), seed=1, speculate="off") as runner:
        yield runner


def test_an_answer_is_that_of_the_other_runner(runner: Runner) -> None:
    request = ChatCompletionRequest(CHAT, temperature=0)
    expected = runner.send_chat_completion_request(request)

    async def ask() -> list[str]:
        model = AsyncRunner(runner)
        answers = await asyncio.gather(
            *(model.send_chat_completion_request(request) for _ in range(3))
        )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask()) == [expected.choices[0].message.content] * 3


def test_a_stream_says_the_same(runner: Runner) -> None:
    request = ChatCompletionRequest(CHAT, temperature=0, stream=True)
    expected = [
        chunk.choices[0].delta.content for chunk in runner.send_chat_completion_request(request)
    ]

    async def ask() -> list[str]:
        stream = await AsyncRunner(runner).send_chat_completion_request(request)
        return [chunk.choices[0].delta.content async for chunk in stream]

    assert "".join(asyncio.run(ask())) == "".join(expected)


def test_an_error_reaches_who_waits(runner: Runner) -> None:
    async def ask() -> None:
        await AsyncRunner(runner).send_completion_request(CompletionRequest("Once"), "another")

    with pytest.raises(UsageError):
        asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_task_cancels_its_replies(stream: bool) -> None:
    reply = Unending()

    async def read() -> None:
        model = AsyncRunner(reply)
        answer = await model.send_completion_request(CompletionRequest("Once", stream=stream))
        async for _ in answer:
            pass

    async def leave() -> None:
        task = asyncio.create_task(read())
        assert await asyncio.to_thread(reply.is_read.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reply.is_closed.is_set()

    asyncio.run(leave())


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply of 2000 tokens takes much longer than the tests wait for its end."""
    before_each_step(lambda: time.sleep(0.02), monkeypatch.setattr)


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_task_ends_its_replies_in_the_engine(runner: Runner, stream: bool) -> None:
    request = ChatCompletionRequest(CHAT, max_tokens=2000, ignore_eos=True, stream=stream)
    engine = runner._model.engine

    async def read() -> None:
        answer = await AsyncRunner(runner).send_chat_completion_request(request)
        if not isinstance(answer, ChatCompletionResponse):
            async for _ in answer:
                pass

    async def leave() -> None:
        task = asyncio.create_task(read())
        await asyncio.to_thread(until, lambda: engine.stats[0] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    until(lambda: engine.stats[:2] == (0, 0), 10)


@pytest.mark.usefixtures("slow_steps")
def test_a_task_that_is_cancelled_early_leaves_no_reply_behind(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its request is read in a thread, which goes on."""
    begins, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()
    begin_chat = runner.begin_chat

    def begin_slowly(*arguments: Any) -> Any:
        begins.set()
        assert may_end.wait(PATIENCE_S)
        try:
            return begin_chat(*arguments)
        finally:
            has_ended.set()

    monkeypatch.setattr(runner, "begin_chat", begin_slowly)
    request = ChatCompletionRequest(CHAT, max_tokens=2000, ignore_eos=True, stream=True)

    async def leave() -> None:
        model = AsyncRunner(runner)
        task = asyncio.create_task(model.send_chat_completion_request(request))
        assert await asyncio.to_thread(begins.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_end.set()

    asyncio.run(leave())
    assert has_ended.wait(PATIENCE_S)
    until(lambda: runner._model.engine.stats[:2] == (0, 0), 10)


def test_it_answers_several_event_loops(runner: Runner) -> None:
    """At once and one after the other."""
    model, meet = AsyncRunner(runner), threading.Barrier(2)

    async def ask() -> str:
        await asyncio.to_thread(meet.wait, PATIENCE_S)
        stream = await model.send_chat_completion_request(
            ChatCompletionRequest(CHAT, temperature=0, stream=True)
        )
        return "".join([chunk.choices[0].delta.content async for chunk in stream])

    for _ in range(2):
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(lambda _: asyncio.run(ask()), range(2))
        assert first == second != ""


def test_it_closes_the_model() -> None:
    async def ask() -> None:
        async with AsyncRunner(Runner(Which.Plain("demo"))) as model:
            assert repr(model).startswith("<AsyncRunner of demo")
        assert "closed" in repr(model)

    asyncio.run(ask())
