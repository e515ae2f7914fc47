"""Shortens a prompt that exceeds the context, dropping the oldest messages or tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from mrs.request import Message


def max_prompt_tokens(context_tokens: int, max_tokens: int | None) -> int:
    """The most tokens of a shortened prompt: the context without `max_tokens` of the reply, for
    which at most half of the context is reserved."""
    half = context_tokens // 2
    return context_tokens - (half if max_tokens is None else min(max_tokens, half))


def newest_turns(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]
) -> list[Message]:
    """The newest turns that fit, at least one, preceded by the messages before the first turn.

    A turn starts with a user's message, so that templates get roles in the expected order.
    """
    starts = [index for index, each in enumerate(messages) if each["role"] == "user"]
    if not starts:
        return list(messages)

    def from_turn(start: int) -> list[Message]:
        return [*messages[: starts[0]], *messages[start:]]

    first = bisect_left(starts[:-1], True, key=lambda start: fits(from_turn(start)))
    return from_turn(starts[first])


def newest_tokens(prompt_ids: Sequence[int], count: int, bos_id: int | None) -> list[int]:
    """The last `count` ids of a prompt, starting with the prompt's bos token if it has one."""
    start = [bos_id] if prompt_ids and prompt_ids[0] == bos_id else []
    return [*start, *prompt_ids[len(prompt_ids) - count + len(start) :]] if count else []
