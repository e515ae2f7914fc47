"""Many fixed texts are found as by one alternative after the other, in short calls."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from mrs.text import patterns
from mrs.text.patterns import any_of, matches, replaced


def flat(texts: list[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


def some(chance: random.Random, most: int) -> str:
    return "".join(chance.choice("ab<|.^-]") for _ in range(chance.randrange(1, most)))


@pytest.mark.parametrize("branches", [0, 1, 30])
@pytest.mark.parametrize("piece", [1, 7, 2**14])
def test_the_longest_text_at_each_place_is_found(
    monkeypatch: pytest.MonkeyPatch, branches: int, piece: int
) -> None:
    monkeypatch.setattr(patterns, "_MOST_BRANCHES", branches)
    monkeypatch.setattr(patterns, "_PIECE_CHARACTERS", piece)
    chance = random.Random(branches * piece)
    for count in range(150):
        texts = [some(chance, 7) for _ in range(count % 12)]
        longest, text = max(map(len, texts), default=0), some(chance, 80)
        pattern, wanted = re.compile(any_of(texts)), re.compile(flat(texts))
        found = [each.span() for each in matches(pattern, text, longest)]
        assert found == [each.span() for each in wanted.finditer(text)]
        marked = replaced(pattern, lambda match: f"({match[0]})", text, longest)
        assert marked == wanted.sub(lambda match: f"({match[0]})", text)


def test_texts_that_begin_alike_are_looked_at_together() -> None:
    """A vocabulary has 6,000 of these, and a stranger's text a million of their first character."""
    pattern = any_of([f"<unused{number}>" for number in range(6000)])
    assert pattern.count("unused") == 1
    assert len(re.compile(pattern).findall("<unused5999><unused6000><unused0>")) == 2


def test_texts_that_begin_each_other_are_no_deep_pattern() -> None:
    texts = ["a" * length for length in range(1, 500)]
    found = re.compile(any_of(texts)).findall("a" * 600 + "b" + "a" * 20)
    assert list(map(len, found)) == [499, 101, 20]


class Counted:
    """A pattern that notes how much of a text each call looks at."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self.looked_at: list[int] = []

    def finditer(self, text: str, start: int, stop: int) -> Iterator[re.Match[str]]:
        self.looked_at.append(stop - start)
        return self._pattern.finditer(text, start, stop)


@pytest.mark.parametrize("text", ["x" * 10**6, "<" * 10**6, "<a>" * 10**5])
def test_a_call_looks_at_few_characters(text: str) -> None:
    pattern = Counted("<a>")
    count = sum(1 for _ in matches(pattern, text, 3))  # type: ignore[arg-type]
    assert count == text.count("<a>")
    assert max(pattern.looked_at) <= 2**14 + 3
    assert len(pattern.looked_at) <= len(text) // 2**14 + 1
