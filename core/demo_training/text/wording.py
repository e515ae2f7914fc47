"""Many ways to word the same question."""

from __future__ import annotations

import re
from random import Random

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_LEADS = ("Hi, ", "Hey, ", "Hello! ", "Please tell me: ", "Tell me, ", "Quick question: ", "Ok, ",
          "Okay. ", "So, ", "Now, ", "Please, ", "I wonder, ", "Another question: ", "Well, ",
          "I have a question: ", "Can you tell me: ", "Do you know: ", "And now: ", "Sorry, ",
          "I would like to know: ", "One more thing: ", "By the way, ", "Just curious: ", "Then ",
          "Hmm, ", "Excuse me, ", "Hey demo, ", "Alright, ", "My next question: ", "Oh, ",
          "Let me ask: ", "Good. ", "Thanks. ", "Great, ", "But ",
          "Could you tell me, ")  # fmt: skip
_TAILS = (" please", ", please", " Thanks", " Do you know?", " thanks!", " I need to know", " now")
_FILLERS = ("really", "actually", "exactly", "just", "then", "again", "so", "please", "quickly",
            "also",
            "maybe", "simply", "now", "for me", "today", "like", "kind of")  # fmt: skip
_CONSONANTS = (
    "b",
    "d",
    "f",
    "g",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "st",
    "tr",
    "gl",
    "fr",
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def phrase(rng: Random, pattern: str) -> str:
    """One reading of `pattern`, where `[a|b|]` stands for one of its alternatives."""
    while found := _INNERMOST.search(pattern):
        choice = rng.choice(found[1].split("|"))
        pattern = pattern[: found.start()] + choice + pattern[found.end() :]
    return pattern


def sentence(rng: Random, pattern: str, end: str = "?") -> str:
    """A question from `pattern`, as people type it: with or without capital, end mark, frills."""
    text = phrase(rng, pattern)
    if rng.random() < 0.05:
        words = text.split(" ")
        words.insert(rng.randint(0, len(words)), rng.choice(_FILLERS))
        text = " ".join(words)
    if rng.random() < 0.15:
        text = rng.choice(_LEADS) + text
    elif rng.random() < 0.7:
        text = text[0].upper() + text[1:]
    text += end if rng.random() < 0.72 else rng.choice(("", "", "", " " + end, end + end, "."))
    if rng.random() < 0.06:
        text += rng.choice(_TAILS)
    if rng.random() < 0.2:
        text = text.lower()
    return _with_typo(rng, text) if rng.random() < 0.08 else text


def invented_word(rng: Random) -> str:
    """A word that means nothing."""
    syllables = (rng.choice(_CONSONANTS) + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))
    return "".join(syllables) + rng.choice(("", "n", "s", "r", "tion", "ing", "ism", "x"))


def _with_typo(rng: Random, text: str) -> str:
    """Drops, doubles, swaps or changes one letter inside a word."""
    inside = [i for i in range(1, len(text) - 1) if text[i - 1 : i + 2].isalpha()]
    if not inside:
        return text
    at = rng.choice(inside)
    letter, after = text[at], text[at + 1]
    changed = rng.choice(("", letter * 2, rng.choice(_LETTERS), after + letter))
    return text[:at] + changed + text[at + (2 if changed == after + letter else 1) :]
