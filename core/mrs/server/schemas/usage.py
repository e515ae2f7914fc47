"""Token counts and times of a response, measured and planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from mrs.api.chunk_stream import total_usage
from mrs.api.responses import Usage
from mrs.events import ReplyUsage


class PromptDetails(Struct, frozen=True):
    """`cached_tokens` of the prompt came from the prefix cache."""

    cached_tokens: int


class CompletionDetails(Struct, frozen=True):
    """`reasoning_tokens` of the reply were thoughts."""

    reasoning_tokens: int


@dataclass(frozen=True, kw_only=True)
class UsageBody(Usage):
    """The prompt counts once, however many replies it gets."""

    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage_body(replies: Sequence[ReplyUsage], *, choices: int = 1) -> UsageBody:
    """The usage of all replies; each `choices` in a row have the same prompt."""
    total = total_usage(
        [
            replace(each, prompt_tokens=0, cached_tokens=0) if index % choices else each
            for index, each in enumerate(replies)
        ]
    )
    return UsageBody(
        **vars(total),
        prompt_tokens_details=PromptDetails(total.cached_tokens),
        completion_tokens_details=CompletionDetails(total.reasoning_tokens),
    )
