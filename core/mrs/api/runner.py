"""A loaded model for Python programs, with the interface of the Python package mistralrs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, overload

from mrs.api.build_responses import (
    Identity,
    chat_chunk,
    chat_response,
    completion_chunk,
    completion_response,
)
from mrs.api.checks import check, check_arguments
from mrs.api.chunk_stream import BegunReplies, ChunkStream, Events
from mrs.api.field_types import of_type, one_of, require
from mrs.api.notebook import notebook_progress
from mrs.api.requests import ChatCompletionRequest, CompletionRequest, EmbeddingRequest
from mrs.api.responses import (
    ChatCompletionChunkResponse,
    ChatCompletionResponse,
    CompletionChunkResponse,
    CompletionResponse,
)
from mrs.api.which import AnyWhich, check_which, layer_map, model_request, path_text
from mrs.errors import UsageError
from mrs.events import OnProgress
from mrs.plan.plan import Plan
from mrs.request import (
    BLOCK_TOKENS,
    ActivationBits,
    CacheType,
    ClusterRequest,
    Message,
    PagedRequest,
    Sampling,
    Speculation,
    require_whole_stages,
)
from mrs.run.model_loader import ModelLoader

if TYPE_CHECKING:
    from typing import Self

    from mrs.run.classifier import Classified
    from mrs.run.ranker import Ranked


class Runner:
    """Plans and loads a model, and answers requests. Thread-safe.

    Requests of several threads are computed in one batch. Errors are those of `mrs.errors`.
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
        pa_blk_size: int | None = None,
        pa_cache_type: CacheType | None = None,
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
        pa_gpu_mem: int | None = None,
        pa_gpu_mem_usage: float | None = None,
        pa_ctxt_len: int | None = None,
        prefix_cache_size: str | int | None = None,
        prefix_cache_dir: str | None = None,
        prefix_cache_dir_size: str | int = "4GiB",
        speculate: Speculation = "ngram",
        draft_model: str | None = None,
        mtp: bool | None = None,
        cpu: bool = False,
        activations: ActivationBits = 8,
        workers: int = 0,
        tensor_parallel_size: int | None = None,
        rejoin_limit_s: float = 0.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Load a model.

        `device_map` (or `num_device_layers`, which means the same) gives the number of layers for
        each device, as in `["0:16", "1:16"]`; without it layers are placed automatically.
        `in_situ_quant` quantizes the weights while loading: `4bit`, `q4k`, `8`. `max_seq_len` and
        `max_batch_size` are hints for planning. The prefix cache keeps `prefix_cache_n` past
        sequences on accelerators, and on a CPU those that its planned memory holds, which
        `prefix_cache_size` limits (bytes, or such as `2GiB`); with `prefix_cache_dir` it also
        stores them in that folder for later runs, in at most `prefix_cache_dir_size` (bytes, or
        such as `512MiB`). With a `seed` the same request gets the same reply. Tokens that repeat
        earlier text are computed several at a time, which changes no reply; `speculate="off"`
        computes them one by one. A smaller `draft_model` of the same vocabulary (hub id, folder or
        `.gguf` file) guesses tokens of any text; so does the model's own draft head, if its files
        have one, where the plan expects that it saves time, or as `mtp` says.

        With `activations` of 16 significant bits, replies on a CPU are almost those of float32, and
        prompts take up to twice the time.

        `workers` is the number of further processes on this machine over which the layers are
        split, `tensor_parallel_size` the number over which each layer is split, this one included.
        If one is lost, replies fail; with a `rejoin_limit_s` it is started again within that time,
        and they go on.

        `on_progress` is called with what is downloaded and loaded; without it, a notebook shows
        that (`show_progress` does so anywhere).

        The KV cache is a pool of fixed size with `paged_attn`, if its size is given (`pa_ctxt_len`
        tokens, `pa_gpu_mem_usage` as a fraction of the memory, or `pa_gpu_mem` MiB), and on a CUDA
        GPU that holds the whole model, unless `no_paged_attn`. Otherwise it grows as needed.

        The first arguments and their order are those of the Python package mistralrs; one that is
        not supported accepts its default value only. Raises MrsError.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "which")}
        check_arguments(Runner.__init__, given)
        check_which(which)
        if device_map is not None and num_device_layers is not None:
            raise UsageError(
                "device_map and num_device_layers are both given, but they mean the same",
                hint="leave one of them out",
            )
        if paged_attn and no_paged_attn:
            raise UsageError("paged_attn and no_paged_attn are both True", hint="give one of them")
        paged = PagedRequest(
            pool=True if paged_attn else False if no_paged_attn else None,
            context_tokens=pa_ctxt_len,
            memory_fraction=pa_gpu_mem_usage,
            memory_mib=pa_gpu_mem,
            block_tokens=pa_blk_size or BLOCK_TOKENS,
            cache_type=pa_cache_type or "auto",
        )
        self._model = ModelLoader(
            replace(
                model_request(which, in_situ_quant, token_source),
                calibration_file=path_text(getattr(which, "calibration_file", None)),
                layer_map=layer_map(num_device_layers if device_map is None else device_map),
                cpu=cpu,
                activations=activations,
                seed=seed,
                kv_cache=not no_kv_cache,
                prefix_cache_n=prefix_cache_n,
                prefix_cache_dir=path_text(prefix_cache_dir),
                prefix_cache_size=None if prefix_cache_size is None else str(prefix_cache_size),
                prefix_cache_dir_size=str(prefix_cache_dir_size),
                speculate=speculate,
                draft_model=path_text(draft_model),
                mtp=mtp,
                max_seqs=max_seqs,
                max_seq_len=max_seq_len,
                max_batch_size=max_batch_size,
                chat_template=path_text(chat_template),
                jinja_explicit=path_text(jinja_explicit),
                paged=paged,
                cluster=_cluster(workers, tensor_parallel_size, rejoin_limit_s),
                write_uqff=path_text(which.write_uqff),
            )
        ).load(on_progress or notebook_progress())
        self._request_ids = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self._model.is_closed else ""
        return f"<Runner of {self._model.plan.summary}{closed}>"

    def plan(self) -> Plan:
        """The plan by which the model was loaded: layers and bytes on each device."""
        return self._model.plan

    @overload
    def send_chat_completion_request(
        self, request: ChatCompletionRequest[Literal[False]], model_id: str | None = None
    ) -> ChatCompletionResponse: ...
    @overload
    def send_chat_completion_request(
        self, request: ChatCompletionRequest[Literal[True]], model_id: str | None = None
    ) -> ChunkStream[ChatCompletionChunkResponse]: ...
    @overload
    def send_chat_completion_request(
        self, request: ChatCompletionRequest[bool], model_id: str | None = None
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]: ...
    def send_chat_completion_request(
        self, request: ChatCompletionRequest[bool], model_id: str | None = None
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]:
        """The model's answer, or with `request.stream` its chunks. Raises MrsError.

        A KeyboardInterrupt cancels the replies and is raised again.
        """
        begun = self.begin_chat(request, model_id)
        return begun.stream() if request.stream else begun.whole()

    @overload
    def send_completion_request(
        self, request: CompletionRequest[Literal[False]], model_id: str | None = None
    ) -> CompletionResponse: ...
    @overload
    def send_completion_request(
        self, request: CompletionRequest[Literal[True]], model_id: str | None = None
    ) -> ChunkStream[CompletionChunkResponse]: ...
    @overload
    def send_completion_request(
        self, request: CompletionRequest[bool], model_id: str | None = None
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]: ...
    def send_completion_request(
        self, request: CompletionRequest[bool], model_id: str | None = None
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]:
        """The continuation of the prompt, or with `request.stream` its chunks. Raises MrsError.

        A KeyboardInterrupt cancels the replies and is raised again.
        """
        begun = self.begin_completion(request, model_id)
        return begun.stream() if request.stream else begun.whole()

    def begin_chat(
        self, request: ChatCompletionRequest[bool], model_id: str | None = None
    ) -> BegunReplies[ChatCompletionResponse, ChatCompletionChunkResponse]:
        """The replies to a conversation, computed from now on. Raises MrsError."""
        self._check_call(request, ChatCompletionRequest, model_id)
        messages = request.messages
        if not isinstance(messages, str):
            messages = request.conversation()
        replies = [self._reply(messages, each, request) for each in self._samplings(request)]
        identity = self._identity()
        return BegunReplies(
            replies,
            lambda whole: chat_response(whole, identity),
            lambda chunk: chat_chunk(chunk, identity),
        )

    def begin_completion(
        self, request: CompletionRequest[bool], model_id: str | None = None
    ) -> BegunReplies[CompletionResponse, CompletionChunkResponse]:
        """The continuations of a prompt, computed from now on. Raises MrsError."""
        self._check_call(request, CompletionRequest, model_id)
        replies = [
            self._complete(request.prompt, each, request) for each in self._samplings(request)
        ]
        identity = self._identity()
        start = self._text_of(request.prompt) if request.echo_prompt else ""
        return BegunReplies(
            replies,
            lambda whole: completion_response(whole, identity, start),
            lambda chunk: completion_chunk(chunk, identity),
            start,
        )

    def send_embedding_request(
        self, request: EmbeddingRequest, model_id: str | None = None
    ) -> list[list[float]]:
        """The embedding of each input. Raises MrsError."""
        self._check_call(request, EmbeddingRequest, model_id)
        found = self._model.embed(
            request.inputs,
            prompt_name=request.prompt_name,
            truncate=request.truncate_sequence,
            dimensions=request.dimensions,
        )
        return [vector.values for vector in found]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate_sequence: bool = False,
    ) -> list[Ranked]:
        """(index, score from 0 to 1, tokens) of documents by how well they answer, best first.

        The `instruction` says what a good answer is, for models that read it. With
        `truncate_sequence`, a document that is too long loses its end. Raises MrsError.
        """
        given = {"query": query, "documents": documents, "truncate_sequence": truncate_sequence}
        check(given if instruction is None else {**given, "instruction": instruction})
        return self._model.rank(
            query, documents, instruction=instruction, truncate=truncate_sequence
        )

    def classify(
        self,
        texts: Sequence[str],
        *,
        text_pair: str | None = None,
        truncate_sequence: bool = False,
    ) -> list[Classified]:
        """(label, probabilities, tokens) of each text, for models that classify.

        Each forms a pair with `text_pair`, if that is given, as premises do with a hypothesis. With
        `truncate_sequence`, what is too long loses its end. Raises MrsError.
        """
        given = {"texts": texts, "truncate_sequence": truncate_sequence}
        check(given if text_pair is None else {**given, "text_pair": text_pair})
        return self._model.classify(texts, text_pair=text_pair, truncate=truncate_sequence)

    def tokenize_text(
        self,
        text: str,
        add_special_tokens: bool,
        enable_thinking: bool | None = None,
        model_id: str | None = None,
    ) -> list[int]:
        """The token ids of a text, in which control tokens are recognized. Raises UsageError.

        `add_special_tokens` adds the tokens that a prompt begins with, such as BOS. No chat
        template is applied, so `enable_thinking` has no effect.
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
        """The text of token ids, with or without control tokens. Raises UsageError."""
        self._check_model(model_id)
        check({"tokens": tokens, "skip_special_tokens": skip_special_tokens})
        ids = self._model.prompts.known_ids(tokens)
        return self._model.tokenizer.decode(ids, show_control=not skip_special_tokens)

    def max_sequence_length(self, model_id: str | None = None) -> int:
        """The model's context length in tokens. Raises UsageError."""
        self._check_model(model_id)
        return self._model.context_tokens

    def list_models(self) -> list[str]:
        """The id of the loaded model, the only one."""
        return [self._model.plan.model.model_id]

    def get_default_model_id(self) -> str:
        """The id of the loaded model."""
        return self.list_models()[0]

    def is_model_loaded(self, model_id: str) -> bool:
        """Whether `model_id` is the loaded model and the runner is not closed."""
        return model_id in self.list_models() and not self._model.is_closed

    @overload
    def send_chat_completion_request_to_model(
        self, request: ChatCompletionRequest[Literal[False]], model_id: str
    ) -> ChatCompletionResponse: ...
    @overload
    def send_chat_completion_request_to_model(
        self, request: ChatCompletionRequest[Literal[True]], model_id: str
    ) -> ChunkStream[ChatCompletionChunkResponse]: ...
    @overload
    def send_chat_completion_request_to_model(
        self, request: ChatCompletionRequest[bool], model_id: str
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]: ...
    def send_chat_completion_request_to_model(
        self, request: ChatCompletionRequest[bool], model_id: str
    ) -> ChatCompletionResponse | ChunkStream[ChatCompletionChunkResponse]:
        """The same for a model id, which must be that of the loaded model."""
        return self.send_chat_completion_request(request, model_id)

    @overload
    def send_completion_request_to_model(
        self, request: CompletionRequest[Literal[False]], model_id: str
    ) -> CompletionResponse: ...
    @overload
    def send_completion_request_to_model(
        self, request: CompletionRequest[Literal[True]], model_id: str
    ) -> ChunkStream[CompletionChunkResponse]: ...
    @overload
    def send_completion_request_to_model(
        self, request: CompletionRequest[bool], model_id: str
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]: ...
    def send_completion_request_to_model(
        self, request: CompletionRequest[bool], model_id: str
    ) -> CompletionResponse | ChunkStream[CompletionChunkResponse]:
        """The same for a model id, which must be that of the loaded model."""
        return self.send_completion_request(request, model_id)

    def close(self) -> None:
        """Free the model's memory, after the prefix cache is written to its folder, if it has one.

        New requests raise UsageError, streams that have begun MrsError. A second call does nothing.
        """
        self._model.close()

    def _check_call(self, request: object, wanted: type, model_id: str | None) -> None:
        require("request", request, of_type(f"a {wanted.__name__}", wanted))
        self._check_model(model_id)

    def _check_model(self, model_id: str | None) -> None:
        loaded = self._model.plan.model.model_id
        if model_id is not None:
            require("model_id", model_id, one_of("default", loaded))

    def _samplings(
        self, request: ChatCompletionRequest[bool] | CompletionRequest[bool]
    ) -> list[Sampling]:
        return request.samplings(self._model.suggested_sampling)

    def _reply(
        self,
        messages: str | Sequence[Message],
        sampling: Sampling,
        request: ChatCompletionRequest[bool],
    ) -> Events:
        if isinstance(messages, str):
            return self._complete(messages, sampling, request)
        return self._model.stream_chat(
            messages,
            sampling,
            thinking=request.thinking,
            truncate=request.truncate_sequence,
            tools=request.tools,
        )

    def _text_of(self, prompt: str | Sequence[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._model.tokenizer.decode(prompt, show_control=True)

    def _complete(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        request: ChatCompletionRequest[bool] | CompletionRequest[bool],
    ) -> Events:
        return self._model.stream_completion(prompt, sampling, truncate=request.truncate_sequence)

    def _identity(self) -> Identity:
        return {
            "id": str(next(self._request_ids)),
            "created": int(time.time()),
            "model": self._model.plan.model.model_id,
        }


def _cluster(workers: int, ranks: int | None, rejoin_limit_s: float) -> ClusterRequest | None:
    """The further processes of a runner. Raises UsageError."""
    group_size = ranks or 0
    workers = workers or max(0, group_size - 1)
    if not workers:
        if rejoin_limit_s:
            raise UsageError("rejoin_limit_s needs workers", hint="add workers=N")
        return None
    require_whole_stages(workers + 1, group_size)
    return ClusterRequest(workers, group_size=group_size, rejoin_limit_s=rejoin_limit_s)
