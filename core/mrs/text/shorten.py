"""Leave out what is oldest of a prompt that is too long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from mrs.request import Message


def room_for_prompt(context_tokens: int, max_tokens: int | None) -> int:
    """Tokens that a shortened prompt may have: half of the context at least, and more where the
    reply is to have less."""
    half = context_tokens // 2
    return context_tokens - min(max_tokens or half, half)


def newest_turns(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]
) -> list[Message]:
    """As many of the newest turns as fit, and one at least, after what comes before all turns.

    A turn begins with what a user says, so that templates find roles in the order they want.
    """
    starts = [index for index, each in enumerate(messages) if each["role"] == "user"]
    if not starts:
        return list(messages)
    before = messages[: starts[0]]
    rests = [[*before, *messages[start:]] for start in starts]
    return rests[bisect_left(range(len(rests) - 1), True, key=lambda index: fits(rests[index]))]


def newest_tokens(prompt_ids: Sequence[int], room: int, bos_id: int | None) -> list[int]:
    """The last `room` ids of a prompt, with the bos token that it began with."""
    start = [bos_id] if prompt_ids and prompt_ids[0] == bos_id else []
    return [*start, *prompt_ids[len(prompt_ids) - room + len(start) :]] if room else []
