"""The bodies of chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from mrs.events import TokenLogprob
from mrs.server.usage import UsageBody

FINGERPRINT = "local"


class TopLogprob(Struct, frozen=True):
    """A candidate for a token, and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(Struct, frozen=True):
    """A token of the reply; `top_logprobs` are the most likely candidates, best first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(Struct, frozen=True):
    """One entry for each token of the reply."""

    content: list[TokenLogprobBody]
    refusal: None = None


class Delta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message; only the first one has the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A chunk of one reply; the last one has a finish reason."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """A chunk of a streamed answer; the usage comes in a last chunk without choices, if wanted."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    system_fingerprint: str = FINGERPRINT
    usage: UsageBody | UnsetType | None = UNSET


class ReplyMessage(Struct, frozen=True, kw_only=True):
    """A whole reply; the thoughts before it are in `reasoning_content`."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET


class Choice(Struct, frozen=True, kw_only=True):
    """One of the replies; `finish_reason` is `stop` or `length`."""

    index: int
    message: ReplyMessage
    logprobs: Logprobs | None = None
    finish_reason: str


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer to a chat completion request."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody
    object: str = "chat.completion"
    system_fingerprint: str = FINGERPRINT


def logprobs_body(tokens: Sequence[TokenLogprob]) -> Logprobs | None:
    """None for no tokens."""
    if not tokens:
        return None
    return Logprobs(
        [
            TokenLogprobBody(
                token_text(each.token),
                each.logprob,
                list(each.token),
                [TopLogprob(token_text(token), value, list(token)) for token, value in each.top],
            )
            for each in tokens
        ]
    )


def token_text(token: bytes) -> str:
    return token.decode("utf-8", "replace")
