"""Responses for Python programs, in the shapes of the OpenAI API, with token rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Characters of a reply that `repr` shows.
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Usage:
    """Token counts and times of a response; with several choices, counts are sums over them.

    `cached_tokens` of the prompt came from the prefix cache. Of the `drafted_tokens` in all
    `drafts`, `accepted_tokens` became part of the replies. `reasoning_tokens` of the completion
    are thoughts, their marks included. The `planned_…` rates are (lowest, highest) tokens per
    second that the plan predicted for a single reply; None for several replies.
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
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class TopLogprob:
    """A candidate for the next token, and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True)
class ResponseLogprob(TopLogprob):
    """A token of the reply; `top_logprobs` are the most likely candidates, best first."""

    top_logprobs: list[TopLogprob]


@dataclass(frozen=True)
class Logprobs:
    """One entry per token of the reply."""

    content: list[ResponseLogprob]


@dataclass(frozen=True)
class CalledFunction:
    """The name of a tool and its arguments as JSON; in a chunk, what is new of them."""

    name: str | None
    arguments: str


@dataclass(frozen=True)
class ToolCallResponse:
    """A call of a tool; in a chunk, a part of it, of which the first one has an id and a name."""

    index: int
    id: str | None
    function: CalledFunction
    type: str = "function"


@dataclass(frozen=True)
class ResponseMessage:
    """The message of a reply; in a chunk, the text since the last chunk."""

    content: str
    role: str = "assistant"
    tool_calls: list[ToolCallResponse] | None = None


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One of the replies to a request.

    `finish_reason` is `stop`, `length` or `tool_calls`; None in every chunk but the last one of a
    reply. `prompt_logprobs` are those of the prompt's tokens after the first, if asked for.
    """

    index: int
    finish_reason: str | None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[ResponseLogprob] | None = None

    @property
    def _message(self) -> ResponseMessage:
        """What the reply, or its chunk, says."""
        raise NotImplementedError

    def _shown(self) -> str:
        """The beginning of the text, the tools that are called, and why the reply ended."""
        text = self._message.content
        is_long = len(text) > _SHOWN_CHARACTERS
        parts = [repr(text[:_SHOWN_CHARACTERS] + "…" if is_long else text)]
        names = [each.function.name for each in self._message.tool_calls or ()]
        parts += [f"calls {name}" for name in names if name is not None]
        return ", ".join(parts) + (f" ({self.finish_reason})" if self.finish_reason else "")


@dataclass(frozen=True, kw_only=True)
class Choice(_Choice):
    """A whole reply."""

    message: ResponseMessage

    @property
    def _message(self) -> ResponseMessage:
        return self.message


@dataclass(frozen=True, kw_only=True)
class ChunkChoice(_Choice):
    """A chunk of a reply."""

    delta: ResponseMessage

    @property
    def _message(self) -> ResponseMessage:
        return self.delta


@dataclass(frozen=True, kw_only=True)
class CompletionChoice(_Choice):
    """The continuation of a text, or a chunk of it."""

    text: str

    @property
    def _message(self) -> ResponseMessage:
        return ResponseMessage(self.text)


@dataclass(frozen=True, kw_only=True, repr=False)
class _Response:
    id: str
    created: int
    model: str
    system_fingerprint: str = "local"

    def _shown(self, choices: Sequence[_Choice], usage: Usage | None) -> str:
        """A `repr` of one line: what the choices say, and the tokens that it took."""
        said = "; ".join(choice._shown() for choice in choices)
        counts = f"; {usage.prompt_tokens} + {usage.completion_tokens} tokens" if usage else ""
        return f"<{type(self).__name__} of {self.model}: {said}{counts}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class ChatCompletionResponse(_Response):
    """The answer to a `ChatCompletionRequest`."""

    choices: list[Choice]
    usage: Usage
    object: str = "chat.completion"

    def __repr__(self) -> str:
        return self._shown(self.choices, self.usage)

    def _repr_markdown_(self) -> str:
        """The replies, as a notebook shows them."""
        return "\n\n---\n\n".join(choice.message.content for choice in self.choices)


@dataclass(frozen=True, kw_only=True, repr=False)
class ChatCompletionChunkResponse(_Response):
    """A chunk of a streamed answer; the last chunk of each choice has its `usage`."""

    choices: list[ChunkChoice]
    usage: Usage | None = None
    object: str = "chat.completion.chunk"

    def __repr__(self) -> str:
        return self._shown(self.choices, self.usage)


@dataclass(frozen=True, kw_only=True, repr=False)
class CompletionResponse(_Response):
    """The answer to a `CompletionRequest`."""

    choices: list[CompletionChoice]
    usage: Usage
    object: str = "text_completion"

    def __repr__(self) -> str:
        return self._shown(self.choices, self.usage)


@dataclass(frozen=True, kw_only=True, repr=False)
class CompletionChunkResponse(_Response):
    """A chunk of a streamed continuation; the last chunk of each choice has its `usage`."""

    choices: list[CompletionChoice]
    usage: Usage | None = None
    object: str = "text_completion"

    def __repr__(self) -> str:
        return self._shown(self.choices, self.usage)
