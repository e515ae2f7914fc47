"""A loaded model for Python programs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TypedDict

from mrs.api.requests import ChatCompletionRequest, CompletionRequest
from mrs.api.responses import (
    ChatCompletionChunkResponse,
    ChatCompletionResponse,
    Choice,
    ChunkChoice,
    CompletionChoice,
    CompletionChunkResponse,
    CompletionResponse,
    Logprobs,
    ResponseMessage,
)
from mrs.api.stream import Chunk, ChunkStream, Collected, Events, collect, total_usage
from mrs.api.which import AnyWhich, Which, model_source, vision_request
from mrs.events import OnProgress
from mrs.plan.plan import Plan
from mrs.request import Message, RunRequest, Sampling
from mrs.runner import load


class _Identity(TypedDict):
    id: str
    created: int
    model: str


class _Common(TypedDict):
    index: int
    finish_reason: str | None
    logprobs: Logprobs | None


class Runner:
    """Plans and loads a model, and answers requests, from several threads too.

    Requests that are made at the same time are computed together. Errors are those of
    `mrs.errors`.
    """

    def __init__(
        self,
        which: AnyWhich,
        *,
        device_map: Sequence[str] | str | None = None,
        num_device_layers: Sequence[str] | str | int | None = None,
        in_situ_quant: str | int | None = None,
        max_seq_len: int | None = None,
        max_batch_size: int = 1,
        max_seqs: int = 16,
        prefix_cache_n: int = 16,
        prefix_cache_dir: str | None = None,
        prefix_cache_dir_size: str | int = "4GiB",
        no_kv_cache: bool = False,
        seed: int | None = None,
        chat_template: str | None = None,
        jinja_explicit: str | None = None,
        token_source: str = "cache",
        cpu: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Load a model.

        `device_map` (or `num_device_layers`, which is the same) says how many layers go where, as
        in `["0:16", "1:16"]`; without it they are placed automatically. `in_situ_quant` quantizes
        while loading: `4bit`, `q4k`, `8`. `max_seq_len` and `max_batch_size` are hints for
        planning; `prefix_cache_n` past sequences stay on their devices, and in the folder
        `prefix_cache_dir` they are kept for later runs, within `prefix_cache_dir_size` (bytes, or
        such as `512MiB`). With a `seed` the same request gets the same reply. Raises MrsError.
        """
        arch = None if isinstance(which, Which.GGUF) else which.arch
        self._model = load(
            RunRequest(
                model_source(which, token_source),
                arch=None if arch is None else arch.value,
                dtype=which.dtype,
                isq=None if in_situ_quant is None else _bits(str(in_situ_quant)),
                layer_map=_layer_map(num_device_layers if device_map is None else device_map),
                cpu=cpu,
                seed=seed,
                kv_cache=not no_kv_cache,
                prefix_cache_n=prefix_cache_n,
                prefix_cache_dir=prefix_cache_dir,
                prefix_cache_dir_size=str(prefix_cache_dir_size),
                max_seqs=max_seqs,
                max_seq_len=max_seq_len,
                max_batch_size=max_batch_size,
                chat_template=chat_template,
                jinja_explicit=jinja_explicit,
                vision=vision_request(which),
            ),
            on_progress,
        )
        self._numbers = itertools.count()

    def plan(self) -> Plan:
        """Where every layer sits and where every byte goes."""
        return self._model.plan

    def send_chat_completion_request(
        self, request: ChatCompletionRequest
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]:
        """The model's answer, or with `request.stream` its chunks. Raises MrsError.

        A KeyboardInterrupt ends the computing and goes on to the caller.
        """
        samplings = request.samplings()
        messages = request.messages
        if not isinstance(messages, str):
            messages = _held(request.conversation())
        thinking = request.enable_thinking
        replies = [self._reply(messages, sampling, thinking) for sampling in samplings]
        identity = self._identity()
        if request.stream:
            return ChunkStream(replies, lambda chunk: _chat_chunk(chunk, identity))
        done = collect(replies)
        choices = [
            Choice(message=ResponseMessage(each.text), **_common(each, index))
            for index, each in enumerate(done)
        ]
        usage = total_usage([each.usage for each in done])
        return ChatCompletionResponse(choices=choices, usage=usage, **identity)

    def send_completion_request(
        self, request: CompletionRequest
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]:
        """The text that the model goes on with, or with `request.stream` its chunks.

        A KeyboardInterrupt ends the computing and goes on to the caller. Raises MrsError.
        """
        replies = [
            self._model.stream_completion(request.prompt, sampling)
            for sampling in request.samplings()
        ]
        identity = self._identity()
        if request.stream:
            return ChunkStream(replies, lambda chunk: _completion_chunk(chunk, identity))
        done = collect(replies)
        start = request.prompt if request.echo_prompt else ""
        choices = [
            CompletionChoice(text=start + each.text, **_common(each, index))
            for index, each in enumerate(done)
        ]
        usage = total_usage([each.usage for each in done])
        return CompletionResponse(choices=choices, usage=usage, **identity)

    def close(self) -> None:
        """Give the memory back, once what is to be kept of it is in files."""
        self._model.close()

    def _reply(
        self, messages: str | Sequence[Message], sampling: Sampling, thinking: bool | None
    ) -> Events:
        if isinstance(messages, str):
            return self._model.stream_completion(messages, sampling)
        return self._model.stream_chat(messages, sampling, thinking=thinking)

    def _identity(self) -> _Identity:
        return {
            "id": str(next(self._numbers)),
            "created": int(time.time()),
            "model": self._model.plan.model.model_id,
        }


def _held(messages: Sequence[Message]) -> list[Message]:
    """The messages with their images read, so that every choice sees the same. Raises NotReadable."""
    from mrs.media.open import hold_picture

    return [
        {**message, "images": [hold_picture(image)[0] for image in message["images"]]}
        if "images" in message
        else message
        for message in messages
    ]


def _common(said: Collected | Chunk, index: int) -> _Common:
    return {
        "index": index,
        "finish_reason": said.finish_reason,
        "logprobs": said.logprobs,
    }


def _chat_chunk(chunk: Chunk, identity: _Identity) -> ChatCompletionChunkResponse:
    choice = ChunkChoice(delta=ResponseMessage(chunk.text), **_common(chunk, chunk.index))
    return ChatCompletionChunkResponse(choices=[choice], usage=chunk.usage, **identity)


def _completion_chunk(chunk: Chunk, identity: _Identity) -> CompletionChunkResponse:
    choice = CompletionChoice(text=chunk.text, **_common(chunk, chunk.index))
    return CompletionChunkResponse(choices=[choice], usage=chunk.usage, **identity)


def _layer_map(given: Sequence[str] | str | int | None) -> str | None:
    if given is None or isinstance(given, (str, int)):
        return None if given is None else str(given)
    return ";".join(given)


def _bits(text: str) -> str:
    """`4bit` as the command line spells it."""
    return text.strip().lower().removesuffix("bit").rstrip("-_ ")
