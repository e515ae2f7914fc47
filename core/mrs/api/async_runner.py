"""A runner for asyncio: requests are awaited, and a cancelled task cancels its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, overload

from mrs.api.chunk_stream import BegunReplies, ChunkStream
from mrs.api.requests import ChatCompletionRequest, CompletionRequest, EmbeddingRequest
from mrs.api.responses import (
    ChatCompletionChunkResponse,
    ChatCompletionResponse,
    CompletionChunkResponse,
    CompletionResponse,
)
from mrs.api.runner import Runner

if TYPE_CHECKING:
    from typing import Self

    from mrs.run.classifier import Classified
    from mrs.run.ranker import Ranked

#: Calls that wait at once, each in a thread; further ones wait for a thread.
MOST_THREADS = 128

Result = TypeVar("Result")
Whole = TypeVar("Whole")
Part = TypeVar("Part")
Response_co = TypeVar("Response_co", covariant=True)


class AsyncChunkStream(Generic[Response_co]):
    """Asynchronous iterator over the chunks of a response; `aclose` cancels its replies."""

    def __init__(self, stream: ChunkStream[Response_co], threads: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._threads = threads

    def __repr__(self) -> str:
        return repr(self._stream).replace("<", "<Async", 1)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Response_co:
        """Raises MrsError."""
        loop = asyncio.get_running_loop()
        try:
            chunk = await loop.run_in_executor(self._threads, next, self._stream, None)
        except asyncio.CancelledError:
            self._stream.close()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Cancel all replies that are not finished."""
        self._stream.close()


class AsyncRunner:
    """A loaded `runner` for asyncio. `async with` closes it at the end.

    Its requests are those of `Runner`, awaited; those of several tasks are computed in one batch.
    `await asyncio.to_thread(Runner, which)` loads a model without holding up the event loop.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="mrs-async")

    def __repr__(self) -> str:
        return repr(self._runner).replace("<Runner", "<AsyncRunner", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def send_chat_completion_request(
        self, request: ChatCompletionRequest[Literal[False]], model_id: str | None = None
    ) -> ChatCompletionResponse: ...
    @overload
    async def send_chat_completion_request(
        self, request: ChatCompletionRequest[Literal[True]], model_id: str | None = None
    ) -> AsyncChunkStream[ChatCompletionChunkResponse]: ...
    @overload
    async def send_chat_completion_request(
        self, request: ChatCompletionRequest[bool], model_id: str | None = None
    ) -> ChatCompletionResponse | AsyncChunkStream[ChatCompletionChunkResponse]: ...
    async def send_chat_completion_request(
        self, request: ChatCompletionRequest[bool], model_id: str | None = None
    ) -> ChatCompletionResponse | AsyncChunkStream[ChatCompletionChunkResponse]:
        """The model's answer, or with `request.stream` its chunks. Raises MrsError."""
        begun = await self._in_thread(lambda: self._runner.begin_chat(request, model_id))
        if request.stream:
            return AsyncChunkStream(begun.stream(), self._threads)
        return await self._whole(begun)

    @overload
    async def send_completion_request(
        self, request: CompletionRequest[Literal[False]], model_id: str | None = None
    ) -> CompletionResponse: ...
    @overload
    async def send_completion_request(
        self, request: CompletionRequest[Literal[True]], model_id: str | None = None
    ) -> AsyncChunkStream[CompletionChunkResponse]: ...
    @overload
    async def send_completion_request(
        self, request: CompletionRequest[bool], model_id: str | None = None
    ) -> CompletionResponse | AsyncChunkStream[CompletionChunkResponse]: ...
    async def send_completion_request(
        self, request: CompletionRequest[bool], model_id: str | None = None
    ) -> CompletionResponse | AsyncChunkStream[CompletionChunkResponse]:
        """The continuation of the prompt, or with `request.stream` its chunks. Raises MrsError."""
        begun = await self._in_thread(lambda: self._runner.begin_completion(request, model_id))
        if request.stream:
            return AsyncChunkStream(begun.stream(), self._threads)
        return await self._whole(begun)

    async def send_embedding_request(
        self, request: EmbeddingRequest, model_id: str | None = None
    ) -> list[list[float]]:
        """The embedding of each input. Raises MrsError."""
        return await self._in_thread(lambda: self._runner.send_embedding_request(request, model_id))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate_sequence: bool = False,
    ) -> list[Ranked]:
        """As `Runner.rerank`. Raises MrsError."""
        return await self._in_thread(
            lambda: self._runner.rerank(
                query, documents, instruction=instruction, truncate_sequence=truncate_sequence
            )
        )

    async def classify(
        self,
        texts: Sequence[str],
        *,
        text_pair: str | None = None,
        truncate_sequence: bool = False,
    ) -> list[Classified]:
        """As `Runner.classify`. Raises MrsError."""
        return await self._in_thread(
            lambda: self._runner.classify(
                texts, text_pair=text_pair, truncate_sequence=truncate_sequence
            )
        )

    async def close(self) -> None:
        """Free the model's memory, as `Runner.close` does."""
        try:
            await self._in_thread(self._runner.close)
        finally:
            self._threads.shutdown(wait=False)

    async def _whole(self, begun: BegunReplies[Whole, Part]) -> Whole:
        try:
            return await self._in_thread(begun.whole)
        except asyncio.CancelledError:
            begun.close()
            raise

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
