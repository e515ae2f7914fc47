"""Which turns of a long conversation stay, and what finding them takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from mrs.request import Message
from mrs.text.shorten import newest_turns
from mrs.units import MIB

SYSTEM: Message = {"role": "system", "content": "s"}


def turns(count: int) -> list[Message]:
    roles = ("user", "assistant")
    return [Message(role=roles[index % 2], content=str(index)) for index in range(2 * count)]


@pytest.mark.parametrize("most", range(1, 12))
def test_as_many_of_the_newest_turns_stay_as_fit_after_what_precedes_all(most: int) -> None:
    conversation = [SYSTEM, *turns(4)]

    def fits(messages: Sequence[Message]) -> bool:
        return len(messages) <= most

    kept = max(1, min(4, (most - 1) // 2))
    assert newest_turns(conversation, fits) == [SYSTEM, *turns(4)[-2 * kept :]]


def test_a_conversation_without_a_user_stays_whole() -> None:
    assert newest_turns([SYSTEM], lambda messages: False) == [SYSTEM]


def test_many_turns_take_little_memory_to_choose_from() -> None:
    """A list of what follows each of 16,000 turns took a gigabyte."""
    conversation = turns(4000)
    tracemalloc.start()
    try:
        newest_turns(conversation, lambda messages: len(messages) <= 100)
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()
