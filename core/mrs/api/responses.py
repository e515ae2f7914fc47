"""What a program gets back: the shapes of the OpenAI API, with rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Token counts and times of a response; of `n_choices` replies the counts are sums.

    `cached_tokens` of the prompt came from the prefix cache. `planned_…` are the least and the most
    tokens a second that the plan expected of a reply made alone; None where several were made
    together.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    avg_tok_per_sec: float
    avg_prompt_tok_per_sec: float
    avg_compl_tok_per_sec: float
    total_time_sec: float
    total_prompt_time_sec: float
    total_completion_time_sec: float
    planned_prompt_tok_per_sec: tuple[float, float] | None = None
    planned_compl_tok_per_sec: tuple[float, float] | None = None


@dataclass(frozen=True)
class TopLogprob:
    """A token that could have been next, and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True)
class ResponseLogprob(TopLogprob):
    """A token of the reply; `top_logprobs` are the likeliest in its place, best first."""

    top_logprobs: list[TopLogprob]


@dataclass(frozen=True)
class Logprobs:
    """One entry a token."""

    content: list[ResponseLogprob]


@dataclass(frozen=True)
class ResponseMessage:
    """What the model said, or in a chunk, what it said since the last one.

    No tools are called.
    """

    content: str
    role: str = "assistant"
    tool_calls: None = None


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One of the replies to a request.

    `finish_reason` is `stop` or `length`, and None in a chunk that is not the reply's last.
    """

    index: int
    finish_reason: str | None
    logprobs: Logprobs | None = None


@dataclass(frozen=True, kw_only=True)
class Choice(_Choice):
    """A whole reply."""

    message: ResponseMessage


@dataclass(frozen=True, kw_only=True)
class ChunkChoice(_Choice):
    """A piece of a reply."""

    delta: ResponseMessage


@dataclass(frozen=True, kw_only=True)
class CompletionChoice(_Choice):
    """The continuation of a text, or a piece of it."""

    text: str


@dataclass(frozen=True, kw_only=True)
class _Response:
    id: str
    created: int
    model: str
    system_fingerprint: str = "local"


@dataclass(frozen=True, kw_only=True)
class ChatCompletionResponse(_Response):
    """The answer to a `ChatCompletionRequest`."""

    choices: list[Choice]
    usage: Usage
    object: str = "chat.completion"


@dataclass(frozen=True, kw_only=True)
class ChatCompletionChunkResponse(_Response):
    """A part of a streamed answer; the last part of each choice has the `usage` of it."""

    choices: list[ChunkChoice]
    usage: Usage | None = None
    object: str = "chat.completion.chunk"


@dataclass(frozen=True, kw_only=True)
class CompletionResponse(_Response):
    """The answer to a `CompletionRequest`."""

    choices: list[CompletionChoice]
    usage: Usage
    object: str = "text_completion"


@dataclass(frozen=True, kw_only=True)
class CompletionChunkResponse(_Response):
    """A part of a streamed continuation; the last part of each choice has the `usage` of it."""

    choices: list[CompletionChoice]
    usage: Usage | None = None
    object: str = "text_completion"
