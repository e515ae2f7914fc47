"""The dialogues that the demo model is trained on, all made here from patterns and facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from . import geography, lessons, recall, small_facts, smalltalk, sums, unknowns
from .chat import Chat, Exchange

Maker = Callable[[Chat], Exchange]

_OPENERS: dict[Maker, float] = {
    geography.capital: 12,
    geography.continent: 4,
    geography.country_of_capital: 4,
    geography.unknown_place: 1,
    geography.lives_in: 1.5,
    sums.addition: 12,
    sums.subtraction: 11,
    sums.multiplication: 11,
    sums.too_large: 0.7,
    sums.comparison: 2,
    sums.parity: 1,
    sums.neighbour: 1,
    sums.counting: 1.2,
    lessons.explanation: 10,
    lessons.short_explanation: 1.5,
    lessons.reason: 3,
    lessons.flag_meaning: 5,
    lessons.flag_for_goal: 6,
    small_facts.single_fact: 3,
    small_facts.table_fact: 7,
    small_facts.weekday: 1.2,
    small_facts.month: 1.5,
    small_facts.month_length: 0.7,
    smalltalk.small_talk: 12,
    unknowns.unknown: 9,
    recall.tell_name: 4,
    recall.tell_name_and_home: 1,
    recall.tell_taste: 1,
    recall.tell_pet: 1,
    recall.echo: 3,
    recall.ask_back: 0.7,
}
_FOLLOW_UPS: dict[str, dict[Maker, float]] = {
    "capital": {geography.another_capital: 4, geography.its_continent: 2},
    "continent": {geography.another_continent: 2, geography.its_capital: 4},
    "city": {geography.its_continent: 1},
    "home": {geography.its_capital: 3},
    "number": {sums.add_to_that: 3, sums.subtract_from_that: 2, sums.multiply_that: 2},
    "term": {lessons.shorter: 3, lessons.longer: 1, lessons.reason_of_that: 2,
             lessons.another_term: 2},
    "flag": {lessons.example: 3, lessons.another_flag: 2},
    "sequence": {small_facts.next_in_sequence: 1},
    **{kind: {small_facts.another_entry: 1} for kind in small_facts.TABLE_KINDS},
}  # fmt: skip
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "You are the mrs demo model.",
    "You are a helpful and honest assistant. Answer in English.",
    "Be kind and precise.",
    "You answer questions about language models.",
    "You are a toy that answers simple questions.",
)
# How many exchanges a dialogue has, with weights.
_LENGTHS = {1: 30, 2: 25, 3: 14, 4: 10, 5: 8, 6: 4, 7: 3, 8: 2, 10: 2, 12: 1, 16: 0.5}


def _pick(rng: Random, makers: dict[Maker, float]) -> Maker:
    return rng.choices(tuple(makers), tuple(makers.values()))[0]


def _maker(chat: Chat) -> Maker:
    """What comes next: a new topic, a follow-up, or a question about the chat."""
    rng = chat.rng
    if not chat.exchanges:
        return _pick(rng, _OPENERS)
    last = chat.exchanges[-1]
    branches: list[tuple[float, dict[Maker, float]]] = [(0.45, _OPENERS)]
    if last.kind in _FOLLOW_UPS:
        branches.append((0.45, _FOLLOW_UPS[last.kind]))
    if chat.told:
        branches.append((0.3 if last.kind == "told" else 0.08, {recall.ask_back: 1}))
    if chat.topics:
        branches.append((0.05, {recall.first_question: 2, recall.last_question: 1}))
    if len(last.answer) < 100:
        branches.append((0.02, {recall.repeat: 1}))
    chosen = rng.choices(branches, [weight for weight, _ in branches])[0]
    return _pick(rng, chosen[1])


def dialogue(rng: Random) -> Chat:
    """One made-up chat of 1 to 12 exchanges, sometimes with a system prompt."""
    chat = Chat(rng, system=rng.choice(_SYSTEMS) if rng.random() < 0.2 else "")
    for _ in range(rng.choices(tuple(_LENGTHS), tuple(_LENGTHS.values()))[0]):
        chat.exchanges.append(_maker(chat)(chat))
    return chat


def dialogues(seed: int, count: int) -> Iterator[Chat]:
    """`count` chats, the same ones for the same seed."""
    rng = Random(seed)
    for _ in range(count):
        yield dialogue(rng)
