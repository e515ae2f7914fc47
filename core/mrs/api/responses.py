"""What a program gets back: the shapes of the OpenAI API, with rates."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Usage:
    """Token counts and times of a response; of `n_choices` replies the counts are sums.

    `cached_tokens` of the prompt came from the prefix cache.
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


@dataclass(frozen=True)
class TopLogprob:
    """A token that could have been next, and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True)
class ResponseLogprob:
    """A token of the reply; `top_logprobs` are the likeliest in its place, best first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


@dataclass(frozen=True)
class Logprobs:
    """One entry a token."""

    content: list[ResponseLogprob]


@dataclass(frozen=True)
class ResponseMessage:
    """What the model said."""

    content: str
    role: str = "assistant"


@dataclass(frozen=True)
class Choice:
    """One reply. `finish_reason` is `stop`, `length` or `cancelled`."""

    finish_reason: str
    index: int
    message: ResponseMessage
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class Delta:
    """More of what the model says."""

    content: str
    role: str = "assistant"


@dataclass(frozen=True)
class ChunkChoice:
    """A piece of one reply; the last has a `finish_reason`."""

    finish_reason: str | None
    index: int
    delta: Delta
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class CompletionChoice:
    """One continuation of a text."""

    finish_reason: str
    index: int
    text: str
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class CompletionChunkChoice:
    """A piece of one continuation."""

    finish_reason: str | None
    index: int
    text: str
    logprobs: Logprobs | None = None


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
    """A part of a streamed continuation."""

    choices: list[CompletionChunkChoice] = field(default_factory=list)
    usage: Usage | None = None
    object: str = "text_completion"
