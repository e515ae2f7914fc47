"""Texts as atoms: a tag, which may be one token, or a character."""

from __future__ import annotations

import re

_ATOM = re.compile(r"<[^<>\s][^<>]*>|\[/?[A-Z_]+\]|.", re.DOTALL)
_TAG = re.compile(r"<[^<>\s][^<>]*>|\[/?[A-Z_]+\]")


def atoms_of(text: str) -> list[str]:
    return _ATOM.findall(text)


def is_tag(atom: str) -> bool:
    return _TAG.fullmatch(atom) is not None


def common_start(one: str, other: str) -> str:
    """The longest text of whole atoms that both begin with."""
    count, atoms, others = 0, atoms_of(one), atoms_of(other)
    while count < min(len(atoms), len(others)) and atoms[count] == others[count]:
        count += 1
    return "".join(atoms[:count])


def common_end(one: str, other: str) -> str:
    """The longest text of whole atoms that both end with."""
    count, atoms, others = 0, atoms_of(one)[::-1], atoms_of(other)[::-1]
    while count < min(len(atoms), len(others)) and atoms[count] == others[count]:
        count += 1
    return "".join(atoms[:count][::-1])


def removed_end(text: str, end: str) -> str:
    return text[: len(text) - len(end)]
