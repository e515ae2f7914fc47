"""The bodies of completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from mrs.events import TokenLogprob
from mrs.server.chat_response import FINGERPRINT, token_text
from mrs.server.usage import UsageBody


class TextLogprobs(Struct, frozen=True):
    """Lists with one entry for each token; `text_offset` is where its text begins."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Struct, frozen=True, kw_only=True):
    """The continuation of a text, or a chunk of it; only the last chunk has a finish reason."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """The answer to a completion request, or a chunk of it."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: str = "text_completion"
    system_fingerprint: str = FINGERPRINT
    usage: UsageBody | UnsetType | None = UNSET


def text_logprobs(tokens: Sequence[TokenLogprob], start: int) -> TextLogprobs | None:
    """None for no tokens; the text of the first one begins at the character `start`."""
    if not tokens:
        return None
    texts = [token_text(each.token) for each in tokens]
    offsets = [start + sum(map(len, texts[:index])) for index in range(len(texts))]
    tops = [{token_text(token): value for token, value in each.top} for each in tokens]
    return TextLogprobs(texts, [each.logprob for each in tokens], tops, offsets)
