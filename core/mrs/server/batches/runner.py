"""Answers the lines of a batch with the routes of a server, as many at once as there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple
from uuid import uuid4

import msgspec
from starlette.types import ASGIApp, Message, Scope

from mrs.server.batches.lines import BatchLine
from mrs.server.batches.results import BatchResponse, BatchResult, Results
from mrs.server.http.errors import ApiError

#: A line that was refused for lack of room is tried again, with pauses up to the longest one.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
#: The address of all lines, in the place of a client's.
BATCH_SENDER = "batch"
#: How often that is tried if nobody can say whether room will come.
_MOST_TRIES = 10
_STREAMED = ApiError(
    400, "a line of a batch gets one answer: leave out stream", "stream", "invalid_value"
)


class Answer(NamedTuple):
    """A response; `ignored` are the fields of the request that had no effect."""

    status: int
    body: bytes
    ignored: str = ""


class Usage(msgspec.Struct):
    """The tokens of a response, or of all so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Counted(msgspec.Struct):
    usage: Usage = msgspec.field(default_factory=Usage)


def scope_of(url: str, request_id: str, salt: bytes = b"") -> Scope:
    """The ASGI scope of a request that comes over no connection."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": (BATCH_SENDER, 0),
        "state": {"request_id": request_id, "salt": salt},
    }


@dataclass
class BatchRunner:
    """Sends lines to `app` and keeps what it answers.

    `at_once` says how many lines may be under way now. All are of one sender, so that others have
    their turns, and of the API key that `salt` stands for. `on_answer` is called after each answer.
    """

    app: ASGIApp
    results: Results
    at_once: Callable[[], int]
    salt: bytes = b""
    on_answer: Callable[[], object] = lambda: None
    usage: Usage = field(default_factory=Usage)
    #: Names of fields without effect.
    ignored: dict[str, None] = field(default_factory=dict)

    async def run(self, lines: Iterable[BatchLine]) -> None:
        """Answer all lines. Those under way are given up, and not answered, if this is cancelled.

        Raises OSError if an answer cannot be written.
        """
        running: set[asyncio.Task[None]] = set()
        try:
            for line in lines:
                running.add(asyncio.ensure_future(self._do(line)))
                while len(running) >= max(self.at_once(), 1):
                    running = await _after_one(running)
                await asyncio.sleep(0)
            while running:
                running = await _after_one(running)
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _do(self, line: BatchLine) -> None:
        request_id = uuid4().hex
        answer = await self._answer(line, request_id)
        response = BatchResponse(answer.status, request_id, msgspec.Raw(answer.body))
        self.results.add(BatchResult(f"batch_req_{uuid4().hex}", line.custom_id, response))
        if answer.status == 200:
            used = msgspec.json.decode(answer.body, type=_Counted).usage
            self.usage.prompt_tokens += used.prompt_tokens
            self.usage.completion_tokens += used.completion_tokens
        self.ignored |= dict.fromkeys(filter(None, answer.ignored.split(", ")))
        self.on_answer()

    async def _answer(self, line: BatchLine, request_id: str) -> Answer:
        """The answer; what finds no room beside others waits for it."""
        for number in count(1):
            answer = await self._ask(line, request_id)
            if answer.status != 429 and (answer.status != 503 or number == _MOST_TRIES):
                break
            await asyncio.sleep(min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S))
        return answer

    async def _ask(self, line: BatchLine, request_id: str) -> Answer:
        body, status, ignored = bytearray(), 0, ""
        rest: list[Message] = [{"type": "http.request", "body": bytes(line.body)}]
        gone = asyncio.Event()

        async def receive() -> Message:
            if rest:
                return rest.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, ignored
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                if headers[b"content-type"].startswith(b"text/event-stream"):
                    gone.set()
                status = message["status"]
                ignored = headers.get(b"x-ignored-fields", b"").decode("ascii")
            elif not gone.is_set():
                body.extend(message["body"])

        await self.app(scope_of(line.url, request_id, self.salt), receive, send)
        if gone.is_set():
            return Answer(_STREAMED.status, msgspec.json.encode(_STREAMED.body))
        return Answer(status, bytes(body), ignored)


async def _after_one(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that still run after at least one has ended. Raises its error."""
    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for each in ended:
        each.result()
    return running
