"""The bodies of completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from mrs.events import TokenLogprob
from mrs.server.schemas.prompt_logprobs import PromptLogprobs
from mrs.server.schemas.response import ResponseFields
from mrs.server.schemas.usage import UsageBody


class TextLogprobs(Struct, frozen=True):
    """Lists with one entry for each token; `text_offset` is where its text begins.

    A token that is a part of a character is called `bytes:`, and then each byte as in `\\xe2`. The
    first token of a prompt has no log probability.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def followed_by(self, other: TextLogprobs) -> TextLogprobs:
        return TextLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class TextChoice(Struct, frozen=True, kw_only=True):
    """The continuation of a text, or a chunk of it; only the last chunk has a finish reason."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(ResponseFields, frozen=True, kw_only=True):
    """The answer to a completion request, or a chunk of it."""

    choices: list[TextChoice]
    object: str = "text_completion"
    usage: UsageBody | UnsetType | None = UNSET


def text_logprobs(
    tokens: Sequence[TokenLogprob], start: int = 0, *, first: bytes | None = None
) -> TextLogprobs | None:
    """None for no tokens; they belong to a text that begins at the character `start`.

    `first` is the first token of a prompt, before them.
    """
    if not tokens and first is None:
        return None
    ahead = [] if first is None else [None]
    return TextLogprobs(
        [*([] if first is None else [_name(first)]), *(_name(each.token) for each in tokens)],
        [*ahead, *(each.logprob for each in tokens)],
        [*ahead, *(_top(each) for each in tokens)],
        [*(0 for _ in ahead), *(start + each.offset for each in tokens)],
    )


def _top(token: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens; of several with the same bytes, the likeliest one."""
    likeliest: dict[str, float] = {}
    for each, value in token.top:
        likeliest.setdefault(_name(each), value)
    return likeliest


def _name(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
