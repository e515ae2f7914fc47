"""A runner for asyncio answers as the other one, in one batch, and drops what nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mrs import AsyncRunner, ChatCompletionRequest, CompletionRequest, Runner, Which
from mrs.api.chunk_stream import BegunReplies
from mrs.errors import UsageError
from mrs.events import Event
from support.waiting import PATIENCE_S

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
    with Runner(Which.Plain("demo"), seed=1) as runner:
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


def test_it_closes_the_model() -> None:
    async def ask() -> None:
        async with AsyncRunner(Runner(Which.Plain("demo"))) as model:
            assert repr(model).startswith("<AsyncRunner of demo")
        assert "closed" in repr(model)

    asyncio.run(ask())
