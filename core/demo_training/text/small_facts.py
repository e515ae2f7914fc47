"""Questions about opposites, colours, animals, days and months."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .chat import Chat, Exchange
from .wording import sentence
from .world import (
    BABIES,
    COLORS,
    DAYS,
    LEGS,
    MONTH_DAYS,
    MONTHS,
    OPPOSITES,
    SIDES,
    SINGLE_FACTS,
    SOUNDS,
)


def single_fact(chat: Chat) -> Exchange:
    """How many days does a week have?"""
    pattern, answer, about = chat.rng.choice(SINGLE_FACTS)
    return Exchange(sentence(chat.rng, f"[{pattern}]"), answer, about, "fact")


@dataclass(frozen=True)
class _Table:
    """Facts of one kind. In the patterns `{}` is the entry's name and `{value}` its fact."""

    facts: Mapping[str, str]
    asked: tuple[str, ...]
    answer: str
    about: str
    weight: float


_TABLES = {
    "opposite": _Table(
        OPPOSITES,
        ("[what is|what's|tell me|name] the opposite of {}", "what is the opposite of {}",
         "[the |]opposite of {}", "what is opposite to {}",
         "[which|what] word is the opposite of {}",
         "what is the opposite [word |]to {}", "[can|could] you tell me the opposite of {}"),
        "the opposite of {} is **{value}**.", "the opposite of {}", 8),
    "color": _Table(
        COLORS,
        ("[what|which] [color|colour] [is|has] {}", "what color is {}",
         "[what is|what's|tell me] the [color|colour] of {}",
         "[do you know|tell me] what color {} is"),
        "{} is **{value}**.", "the color of {}", 5),
    "sound": _Table(
        SOUNDS,
        ("[what|which] [sound|noise] does a {} make", "[what does|how does] a {} [say|sound]",
         "[what is|what's] the sound of a {}", "how do {}s sound"),
        "a {} says **{value}**.", "the sound of a {}", 3),
    "legs": _Table(
        LEGS,
        ("how many legs does a {} have", "how many legs has a {}", "how many legs do {}s have",
         "[what is the number of legs of|number of legs of] a {}"),
        "a {} has **{value}** legs.", "the legs of a {}", 2),
    "sides": _Table(
        SIDES,
        ("how many [sides|corners] does a {} have", "how many [sides|corners] has a {}"),
        "a {} has **{value}** sides.", "the sides of a {}", 1),
    "baby": _Table(
        BABIES,
        ("what is a baby {} called", "[what do you call|what is the name of] a [baby|young] {}",
         "how is a [baby|young] {} called"),
        "a baby {} is called a **{value}**.", "a baby {}", 2),
}  # fmt: skip
TABLE_KINDS = tuple(_TABLES)


def _named(text: str, key: str) -> str:
    """`text` about the entry `key`, with the right article."""
    article = "an" if key[0] in "aeiou" else "a"
    return text.replace("a {}", f"{article} {key}").replace("{}", key)


def _tell_entry(chat: Chat, kind: str, key: str, pattern: str) -> Exchange:
    table = _TABLES[kind]
    answer = _named(table.answer, key).replace("{value}", table.facts[key])
    question = sentence(chat.rng, _named(pattern, key))
    return Exchange(question, answer[0].upper() + answer[1:], _named(table.about, key), kind, key)


def table_fact(chat: Chat) -> Exchange:
    """What is the opposite of big?"""
    weights = [table.weight for table in _TABLES.values()]
    kind = chat.rng.choices(TABLE_KINDS, weights)[0]
    table = _TABLES[kind]
    return _tell_entry(chat, kind, chat.rng.choice(list(table.facts)), chat.rng.choice(table.asked))


def another_entry(chat: Chat) -> Exchange:
    """And of small?"""
    last = chat.exchanges[-1]
    keys = [key for key in _TABLES[last.kind].facts if key != last.subject]
    thing = "{}" if last.kind in ("opposite", "color") else "a {}"
    middle = "[of |]" if last.kind == "opposite" else ""
    pattern = f"[and {middle}|what about |how about |and what about ]{thing}"
    return _tell_entry(chat, last.kind, chat.rng.choice(keys), pattern)


def weekday(chat: Chat) -> Exchange:
    """Which day comes after Monday?"""
    index, step, side = chat.rng.randrange(7), *chat.rng.choice(((1, "after"), (-1, "before")))
    pattern = f"[what|which|what|which] day [comes|is] {side} {DAYS[index]}"
    return _tell_neighbour(sentence(chat.rng, pattern), DAYS, index, step)


def month(chat: Chat) -> Exchange:
    """Which month comes after May?"""
    index, step, side = chat.rng.randrange(12), *chat.rng.choice(((1, "after"), (-1, "before")))
    pattern = f"[what|which] month [comes|is] {side} {MONTHS[index]}"
    return _tell_neighbour(sentence(chat.rng, pattern), MONTHS, index, step)


def month_length(chat: Chat) -> Exchange:
    """How many days has May?"""
    index = chat.rng.randrange(12)
    pattern = (
        f"how many days [does {MONTHS[index]} have|has {MONTHS[index]}|are in {MONTHS[index]}]"
    )
    answer = f"{MONTHS[index]} has **{MONTH_DAYS[index]}** days."
    return Exchange(sentence(chat.rng, pattern), answer, MONTHS[index], "fact")


def _tell_neighbour(question: str, names: tuple[str, ...], index: int, step: int) -> Exchange:
    side = "after" if step > 0 else "before"
    other = (index + step) % len(names)
    what = "day" if names is DAYS else "month"
    answer = f"The {what} {side} {names[index]} is **{names[other]}**."
    return Exchange(
        question, answer, f"the {what} {side} {names[index]}", "sequence", (names, other)
    )


def next_in_sequence(chat: Chat) -> Exchange:
    """And after that?"""
    subject = chat.exchanges[-1].subject
    assert isinstance(subject, tuple)
    names, index = subject
    step, side = chat.rng.choice(((1, "after"), (1, "after"), (-1, "before")))
    pattern = f"[and |][what|which one] comes {side} that|[and |][the one |]{side} that"
    return _tell_neighbour(sentence(chat.rng, f"[{pattern}]"), names, index, step)
