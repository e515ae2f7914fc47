"""Finds many fixed texts in a long one, in short calls.

A call of `re` keeps the interpreter until it returns, and looks at one alternative after the other:
for thousands of control tokens that begin alike, a text of their first character took seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

#: Characters that a call looks at: about a millisecond if a text may begin at each of them.
_PIECE_CHARACTERS = 2**14
#: Branches inside each other. `re` compiles them recursively, and few texts have so many.
_MOST_BRANCHES = 30


def any_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts` at a position; fast where none of them can start."""
    known = sorted(set(texts))
    if not known:
        return "(?!)"
    starts = "".join(sorted({re.escape(text[0]) for text in known}))
    return f"(?=[{starts}]){_branches(known, 0, _MOST_BRANCHES)}"


def _branches(texts: list[str], start: int, most: int) -> str:
    """A pattern for what follows the first `start` characters, which all of the sorted texts have.

    A character is looked at once for all texts that have it, as in a trie.
    """
    if not most:
        longest_first = sorted(texts, key=len, reverse=True)
        return "(?:" + "|".join(re.escape(text[start:]) for text in longest_first) + ")"
    ends_here = len(texts[0]) == start
    groups: dict[str, list[str]] = {}
    for text in texts[ends_here:]:
        groups.setdefault(text[start], []).append(text)
    branches = []
    for group in groups.values():
        end = len(_common(group[0], group[-1]))
        rest = "" if len(group) == 1 else _branches(group, end, most - 1)
        branches.append(re.escape(group[0][start:end]) + rest)
    return f"(?:{'|'.join(branches)}){'?' if ends_here else ''}"


def _common(one: str, other: str) -> str:
    """The beginning that both have: of the first and the last of sorted texts, that of all."""
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[: min(len(one), len(other)) if length is None else length]


def matches(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[re.Match[str]]:
    """As `pattern.finditer` finds them, if none is empty or has more than `longest` characters."""
    start = 0
    while start < len(text):
        stop = next_start = start + _PIECE_CHARACTERS
        for match in pattern.finditer(text, start, stop + longest):
            if match.start() >= stop:
                break
            yield match
            next_start = max(stop, match.end())
        start = next_start


def replaced(
    pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str, longest: int
) -> str:
    """As `pattern.sub` makes it, under the conditions of `matches`."""
    pieces, end = list[str](), 0
    for match in matches(pattern, text, longest):
        pieces += text[end : match.start()], replace(match)
        end = match.end()
    return "".join([*pieces, text[end:]]) if pieces else text
