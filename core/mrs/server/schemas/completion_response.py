"""The bodies of completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from mrs.api.chunk_stream import logprobs_of
from mrs.events import TokenLogprob
from mrs.server.schemas.response import ResponseFields
from mrs.server.schemas.usage import UsageBody


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


class Completion(ResponseFields, frozen=True, kw_only=True):
    """The answer to a completion request, or a chunk of it."""

    choices: list[TextChoice]
    object: str = "text_completion"
    usage: UsageBody | UnsetType | None = UNSET


def text_logprobs(tokens: Sequence[TokenLogprob], start: int) -> TextLogprobs | None:
    """None for no tokens; the text of the first one begins at the character `start`."""
    found = logprobs_of(tokens)
    if found is None:
        return None
    texts = [each.token for each in found.content]
    offsets = [start + sum(map(len, texts[:index])) for index in range(len(texts))]
    tops = [{top.token: top.logprob for top in each.top_logprobs} for each in found.content]
    return TextLogprobs(texts, [each.logprob for each in found.content], tops, offsets)
