"""A loaded model for Python programs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from mrs.api.checks import check, check_arguments, of_type, one_of, require
from mrs.api.chunk_stream import Chunk, ChunkStream, Collected, Events, collect, total_usage
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
from mrs.api.which import (
    AnyWhich,
    Which,
    check_which,
    dtype_of,
    model_source,
    path_text,
    vision_request,
)
from mrs.errors import UsageError
from mrs.events import OnProgress
from mrs.model_loader import ModelLoader
from mrs.plan.plan import Plan
from mrs.request import Message, RunRequest, Sampling

if TYPE_CHECKING:
    from typing_extensions import Self


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
        max_seqs: int = 16,
        no_kv_cache: bool = False,
        prefix_cache_n: int = 16,
        token_source: str = "cache",
        mtp_model: None = None,
        mtp_n_predict: None = None,
        chat_template: str | None = None,
        jinja_explicit: str | None = None,
        num_device_layers: Sequence[str] | str | int | None = None,
        in_situ_quant: str | int | None = None,
        anymoe_config: None = None,
        memory_goal: None = None,
        pa_blk_size: None = None,
        pa_cache_type: None = None,
        no_paged_attn: bool = False,
        paged_attn: bool = False,
        seed: int | None = None,
        enable_search: bool = False,
        search_embedding_model: None = None,
        search_callback: None = None,
        tool_callbacks: None = None,
        mcp_client_config: None = None,
        code_execution_config: None = None,
        shell_config: None = None,
        *,
        device_map: Sequence[str] | str | None = None,
        max_seq_len: int | None = None,
        max_batch_size: int = 1,
        prefix_cache_dir: str | None = None,
        prefix_cache_dir_size: str | int = "4GiB",
        cpu: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Load a model.

        `device_map` (or `num_device_layers`, which is the same) says how many layers go where, as
        in `["0:16", "1:16"]`; without it they are placed automatically. `in_situ_quant` quantizes
        while loading: `4bit`, `q4k`, `8`. `max_seq_len` and `max_batch_size` are hints for
        planning; `prefix_cache_n` past sequences stay on their devices, and in the folder
        `prefix_cache_dir` they are kept for later runs, within `prefix_cache_dir_size` (bytes, or
        such as `512MiB`). With a `seed` the same request gets the same reply. The first arguments
        are those of the peer, in its order; what is not supported may have its default value only.
        Raises MrsError.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "which")}
        check_arguments(Runner.__init__, given)
        check_which(which)
        if device_map is not None and num_device_layers is not None:
            raise UsageError(
                "device_map and num_device_layers are given, which are the same",
                hint="leave one of them out",
            )
        arch = None if isinstance(which, Which.GGUF) else which.arch
        self._model = ModelLoader(
            RunRequest(
                model_source(which, token_source),
                arch=None if arch is None else arch.value,
                dtype=dtype_of(which),
                isq=None if in_situ_quant is None else _bits(str(in_situ_quant)),
                layer_map=_layer_map(num_device_layers if device_map is None else device_map),
                cpu=cpu,
                seed=seed,
                kv_cache=not no_kv_cache,
                prefix_cache_n=prefix_cache_n,
                prefix_cache_dir=path_text(prefix_cache_dir),
                prefix_cache_dir_size=str(prefix_cache_dir_size),
                max_seqs=max_seqs,
                max_seq_len=max_seq_len,
                max_batch_size=max_batch_size,
                chat_template=path_text(chat_template),
                jinja_explicit=path_text(jinja_explicit),
                vision=vision_request(which),
            )
        ).load(on_progress)
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self) -> Plan:
        """Where every layer sits and where every byte goes."""
        return self._model.plan

    def send_chat_completion_request(
        self, request: ChatCompletionRequest, model_id: str | None = None
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]:
        """The model's answer, or with `request.stream` its chunks. Raises MrsError.

        A KeyboardInterrupt ends the computing and goes on to the caller.
        """
        self._check_call(request, ChatCompletionRequest, model_id)
        messages = request.messages
        if not isinstance(messages, str):
            messages = _held(request.conversation())
        replies = [self._reply(messages, each, request) for each in request.samplings()]
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
        self, request: CompletionRequest, model_id: str | None = None
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]:
        """The text that the model goes on with, or with `request.stream` its chunks.

        A KeyboardInterrupt ends the computing and goes on to the caller. Raises MrsError.
        """
        self._check_call(request, CompletionRequest, model_id)
        replies = [self._continued(request.prompt, each, request) for each in request.samplings()]
        identity = self._identity()
        start = request.prompt if request.echo_prompt else ""
        if request.stream:
            return ChunkStream(replies, lambda chunk: _completion_chunk(chunk, identity), start)
        done = collect(replies)
        choices = [
            CompletionChoice(text=start + each.text, **_common(each, index))
            for index, each in enumerate(done)
        ]
        usage = total_usage([each.usage for each in done])
        return CompletionResponse(choices=choices, usage=usage, **identity)

    def tokenize_text(
        self,
        text: str,
        add_special_tokens: bool,
        enable_thinking: bool | None = None,
        model_id: str | None = None,
    ) -> list[int]:
        """Ids of a text, control tokens and all; `add_special_tokens` adds what a prompt gets.

        No chat template is used, so `enable_thinking` changes nothing. Raises UsageError.
        """
        self._check_model(model_id)
        check({"text": text, "add_special_tokens": add_special_tokens})
        tokenizer = self._model.tokenizer
        if add_special_tokens:
            return tokenizer.encode_prompt(text)
        return tokenizer.encode(text, allow_special=True)

    def detokenize_text(
        self, tokens: Sequence[int], skip_special_tokens: bool, model_id: str | None = None
    ) -> str:
        """The text of ids, with control tokens or without. Raises UsageError."""
        self._check_model(model_id)
        check({"tokens": tokens, "skip_special_tokens": skip_special_tokens})
        return self._model.tokenizer.decode(tokens, show_control=not skip_special_tokens)

    def max_sequence_length(self, model_id: str | None = None) -> int:
        """Tokens that the model's context holds. Raises UsageError."""
        self._check_model(model_id)
        return self._model.context_tokens

    def list_models(self) -> list[str]:
        """The one model there is."""
        return [self._model.plan.model.model_id]

    def get_default_model_id(self) -> str:
        """The one model there is."""
        return self.list_models()[0]

    def is_model_loaded(self, model_id: str) -> bool:
        """Whether it is this one, and not closed."""
        return model_id in self.list_models() and not self._model.is_closed

    def send_chat_completion_request_to_model(
        self, request: ChatCompletionRequest, model_id: str
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]:
        """As without a model's name, which is checked."""
        return self.send_chat_completion_request(request, model_id)

    def send_completion_request_to_model(
        self, request: CompletionRequest, model_id: str
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]:
        """As without a model's name, which is checked."""
        return self.send_completion_request(request, model_id)

    def close(self) -> None:
        """Give the memory back, once what is to be kept of it is in files.

        Requests raise UsageError from then on, streams that were begun go on; closing again does
        nothing.
        """
        self._model.close()

    def _check_call(self, request: object, wanted: type, model_id: str | None) -> None:
        require("request", request, of_type(f"a {wanted.__name__}", wanted))
        self._check_model(model_id)

    def _check_model(self, model_id: str | None) -> None:
        mine = self._model.plan.model.model_id
        if model_id is not None:
            require("model_id", model_id, one_of("default", mine))

    def _reply(
        self, messages: str | Sequence[Message], sampling: Sampling, request: ChatCompletionRequest
    ) -> Events:
        if isinstance(messages, str):
            return self._continued(messages, sampling, request)
        return self._model.stream_chat(
            messages, sampling, thinking=request.thinking, truncate=request.truncate_sequence
        )

    def _continued(
        self, prompt: str, sampling: Sampling, request: ChatCompletionRequest | CompletionRequest
    ) -> Events:
        return self._model.stream_completion(prompt, sampling, truncate=request.truncate_sequence)

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
