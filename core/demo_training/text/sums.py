"""Small arithmetic and other questions about numbers."""

from __future__ import annotations

from .chat import Chat, Exchange
from .wording import sentence
from .world import NUMBERS

TIMES = "\N{MULTIPLICATION SIGN}"

_ASK = ("[what is|what's|whats|how much is|calculate|compute|tell me|work out] {} {o} {}",
        "what does {} {o} {} [make|equal|give]", "what is {} {o} {}", "how much is {} {o} {}",
        "{} {o} {}", "{} {o} {} [=|is|equals|makes]",
        "can you [calculate|compute|tell me|add up] {} {o} {}", "solve {} {o} {}",
        "[what is the result of|what do I get for|what do you get for] {} {o} {}")  # fmt: skip


def _number(chat: Chat, value: int, words: bool) -> str:
    return NUMBERS[value] if words and 0 <= value <= 20 else str(value)


def _solution(question: str, first: int, sign: str, second: int) -> Exchange:
    result = {"+": first + second, "-": first - second, TIMES: first * second}[sign]
    calculation = f"{first} {sign} {second}"
    answer = f"{calculation} = **{result}**"
    return Exchange(question, answer, calculation, "number", result)


def _sum(chat: Chat, first: int, sign: str, second: int, spoken: tuple[str, ...],
         special: tuple[str, ...]) -> Exchange:  # fmt: skip
    """`spoken` are words for the sign; `special` are patterns with {a} and {b} of their own."""
    rng = chat.rng
    words = rng.random() < 0.15
    a, b = _number(chat, first, words), _number(chat, second, words)
    if rng.random() < 0.25:
        pattern = rng.choice(special).replace("{a}", a).replace("{b}", b)
    else:
        pattern = rng.choice(_ASK).replace("{o}", rng.choice(spoken), 1)
        pattern = pattern.replace("{}", a, 1).replace("{}", b, 1)
        if not words and rng.random() < 0.2:
            pattern = pattern.replace(f"{a} {sign} {b}", f"{a}{sign}{b}")
    return _solution(sentence(rng, pattern), first, sign, second)


def addition(chat: Chat) -> Exchange:
    """What is 3 + 4?"""
    largest = chat.rng.choice((10, 20))
    first, second = chat.rng.randint(0, largest), chat.rng.randint(0, largest)
    special = ("[add|sum] {a} and {b}", "[the |what is the ]sum of {a} and {b}",
               "add {b} to {a}", "what do I get if I add {a} and {b}",
               "I have {a} apples and get {b} more. How many [apples |]do I have")  # fmt: skip
    exchange = _sum(chat, first, "+", second, ("+", "+", "+", "plus", "plus", "and"), special)
    return exchange


def subtraction(chat: Chat) -> Exchange:
    """What is 7 - 4?"""
    first, second = chat.rng.randint(0, 20), chat.rng.randint(0, 20)
    if first < second and chat.rng.random() < 0.85:
        first, second = second, first
    special = ("[subtract|take|take away] {b} from {a}",
               "[the |what is the ]difference of {a} and {b}",
               "what is left if I take {b} from {a}",
               "I have {a} apples and eat {b}. How many [apples |]are left")  # fmt: skip
    return _sum(chat, first, "-", second, ("-", "-", "-", "minus", "minus", "less"), special)


def multiplication(chat: Chat) -> Exchange:
    """What is 6 times 7?"""
    first, second = chat.rng.randint(0, 10), chat.rng.randint(0, 10)
    special = ("multiply {a} [by|with|and] {b}", "[the |what is the ]product of {a} and {b}",
               "I have {a} boxes with {b} apples each. How many apples do I have")  # fmt: skip
    return _sum(chat, first, TIMES, second, ("*", "*", "x", "x", "times",
                                             "times", TIMES, "multiplied by"),
                special)  # fmt: skip


def too_large(chat: Chat) -> Exchange:
    """What is 123 * 456?"""
    rng = chat.rng
    first, second = rng.randint(101, 9999), rng.randint(21, 9999)
    pattern = rng.choice(_ASK).replace(
        "{o}", rng.choice(("+", "-", "*", "x", "times", "plus", "/"))
    )
    pattern = pattern.replace("{}", str(first), 1).replace("{}", str(second), 1)
    answer = "Those numbers are too large for me. I only know small ones."
    return Exchange(sentence(rng, pattern), answer, "large numbers", "unknown")


def comparison(chat: Chat) -> Exchange:
    """Which is larger, 3 or 8?"""
    first, second = chat.rng.sample(range(51), 2)
    larger = chat.rng.random() < 0.6
    words = "[larger|bigger|greater|more]" if larger else "[smaller|less]"
    pattern = f"[which|what] [number |]is {words}, {first} or {second}"
    result = max(first, second) if larger else min(first, second)
    answer = f"**{result}** is {'larger' if larger else 'smaller'}."
    return Exchange(sentence(chat.rng, pattern), answer, f"{first} and {second}", "number", result)


def parity(chat: Chat) -> Exchange:
    """Is 7 even or odd?"""
    value = chat.rng.randint(0, 100)
    pattern = (
        f"is [the number |]{value} [even or odd|odd or even|an even number|an odd number|even|odd]"
    )
    answer = f"{value} is **{'odd' if value % 2 else 'even'}**."
    return Exchange(sentence(chat.rng, pattern), answer, f"the number {value}", "number", value)


def neighbour(chat: Chat) -> Exchange:
    """What comes after 7?"""
    value = chat.rng.randint(1, 99)
    after = chat.rng.random() < 0.7
    side = "after" if after else "before"
    pattern = f"[what|which number|what number] [comes|is] {side} {value}"
    result = value + 1 if after else value - 1
    answer = f"The number {side} {value} is **{result}**."
    return Exchange(
        sentence(chat.rng, pattern), answer, f"the number {side} {value}", "number", result
    )


def counting(chat: Chat) -> Exchange:
    """Count from 3 to 8."""
    first = chat.rng.choice((1, 1, 1, 2, 3, 4, 5))
    last = chat.rng.randint(first + 2, first + 9)
    start = chat.rng.choice(("", f" from {first}")) if first == 1 else f" from {first}"
    end = chat.rng.choice((str(last), NUMBERS[last]))
    pattern = f"[count|please count|can you count]{start} to {end}"
    answer = ", ".join(str(value) for value in range(first, last + 1))
    return Exchange(sentence(chat.rng, pattern, ""), answer, "counting")


def add_to_that(chat: Chat) -> Exchange:
    """Add 2 to that."""
    value, second = _last(chat), chat.rng.randint(1, 10)
    pattern = chat.rng.choice((
        "[and |now |]add {} to [that|it|this|the result]", "[and |now |]add {}",
        "[and |now |]plus {}",
        "[and|what is that|and that] plus {}", "and {} more", "[and |]+ {}",
        "what do I get if I add {} [to that|]",
    ))  # fmt: skip
    return _solution(sentence(chat.rng, pattern.replace("{}", str(second))), value, "+", second)


def subtract_from_that(chat: Chat) -> Exchange:
    """Now take away 2."""
    value = _last(chat)
    second = chat.rng.randint(0, min(max(value, 0), 10))
    pattern = chat.rng.choice((
        "[and |now |][subtract|take] {} from [that|it|this|the result]",
        "[and |now |][subtract|take away] {}", "[and |now |]minus {}",
        "[and|what is that|and that] minus {}", "and {} less", "[and |]- {}",
    ))  # fmt: skip
    return _solution(sentence(chat.rng, pattern.replace("{}", str(second))), value, "-", second)


def multiply_that(chat: Chat) -> Exchange:
    """Times 3."""
    value = _last(chat)
    second = chat.rng.randint(1, 10) if abs(value) <= 10 else 2
    pattern = chat.rng.choice((
        "[and |now |]multiply [that|it|this|the result] [by|with] {}", "[and |now |]times {}",
        "[and|what is that|and that] times {}", "[and |]x {}",
    ))  # fmt: skip
    if second == 2 and chat.rng.random() < 0.6:
        pattern = "[and |now |][double|twice] [that|it|this]"
    return _solution(sentence(chat.rng, pattern.replace("{}", str(second))), value, TIMES, second)


def _last(chat: Chat) -> int:
    subject = chat.exchanges[-1].subject
    assert isinstance(subject, int)
    return subject
