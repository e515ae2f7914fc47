"""Token counts and times of a response, measured and planned."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mrs.api.chunk_stream import total_usage
from mrs.events import ReplyUsage


class PromptDetails(Struct, frozen=True):
    """`cached_tokens` of the prompt came from the prefix cache."""

    cached_tokens: int


class CompletionDetails(Struct, frozen=True):
    """`reasoning_tokens` of the reply were thoughts."""

    reasoning_tokens: int


class UsageBody(Struct, frozen=True, kw_only=True):
    """Token counts and times; the prompt counts once, however many replies it gets.

    The `planned_…` rates are (lowest, highest) tokens per second that the plan predicted for a
    reply that is computed alone; null for all others.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    avg_tok_per_sec: float
    avg_prompt_tok_per_sec: float
    avg_compl_tok_per_sec: float
    total_time_sec: float
    total_prompt_time_sec: float
    total_completion_time_sec: float
    planned_prompt_tok_per_sec: tuple[float, float] | None = None
    planned_compl_tok_per_sec: tuple[float, float] | None = None


def usage_body(
    replies: Sequence[ReplyUsage], reasoning_tokens: int = 0, *, choices: int = 1
) -> UsageBody:
    """The usage of all replies, of which `choices` in a row have the same prompt."""
    total, firsts = total_usage(replies), replies[::choices]
    prompt_tokens = sum(each.prompt_tokens for each in firsts)
    return UsageBody(
        prompt_tokens=prompt_tokens,
        completion_tokens=total.completion_tokens,
        total_tokens=prompt_tokens + total.completion_tokens,
        prompt_tokens_details=PromptDetails(sum(each.cached_tokens for each in firsts)),
        completion_tokens_details=CompletionDetails(reasoning_tokens),
        avg_tok_per_sec=total.avg_tok_per_sec,
        avg_prompt_tok_per_sec=total.avg_prompt_tok_per_sec,
        avg_compl_tok_per_sec=total.avg_compl_tok_per_sec,
        total_time_sec=total.total_time_sec,
        total_prompt_time_sec=total.total_prompt_time_sec,
        total_completion_time_sec=total.total_completion_time_sec,
        planned_prompt_tok_per_sec=total.planned_prompt_tok_per_sec,
        planned_compl_tok_per_sec=total.planned_compl_tok_per_sec,
    )
