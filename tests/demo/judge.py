"""Decides whether the demo model answered a question, and loads the questions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = Path(__file__).parent / "questions.json"


@dataclass(frozen=True)
class Case:
    """What a person types, turn by turn, and what the last reply has to contain.

    Each entry of `contains` is a lower-case text, or several of which one is enough.
    `held_out` says that the last turn's wording occurs nowhere in the training dialogues.
    """

    turns: tuple[str, ...]
    contains: tuple[str | tuple[str, ...], ...]
    held_out: bool


def load_cases(section: str, path: Path = QUESTIONS) -> list[Case]:
    """The cases of `questions` or of `follow_ups`."""
    return [
        Case(
            turns=tuple(entry["turns"]),
            contains=tuple(c if isinstance(c, str) else tuple(c) for c in entry["contains"]),
            held_out=entry.get("held_out", False),
        )
        for entry in json.loads(path.read_text(encoding="utf-8"))[section]
    ]


def is_right(reply: str, contains: Sequence[str | Sequence[str]]) -> bool:
    """Whether the reply has every required text. A number has to stand alone: 7 is not in 17."""
    said = reply.lower()
    return all(
        any(_occurs(text, said) for text in ([wanted] if isinstance(wanted, str) else wanted))
        for wanted in contains
    )


def _occurs(wanted: str, said: str) -> bool:
    if not re.fullmatch(r"-?\d+", wanted):
        return wanted in said
    return re.search(rf"(?<![\d-]){re.escape(wanted)}(?!\d)", said) is not None
