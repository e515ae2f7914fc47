"""Reads what stands before the arguments of a call: the tool's name, and an id."""

from __future__ import annotations

import re
from typing import NamedTuple

from mrs.tools.call_format import Hole, Parts

_PATTERNS = {
    Hole.NAME: re.compile(r"[A-Za-z0-9_.-]*"),
    Hole.ID: re.compile(r"[A-Za-z0-9_.:-]*"),
    Hole.NUMBER: re.compile(r"[0-9]*"),
}


class Head(NamedTuple):
    """The texts in the holes, how many characters they and the marks have, and what is after."""

    name: str | None
    call_id: str | None
    number: str | None
    length: int
    rest: Parts


def read_head(parts: Parts, text: str) -> Head | None:
    """The head of a call at the start of a text; None if it goes on, or is another text."""
    holes: dict[Hole, str] = {}
    position, parts = 0, tuple(parts)
    while parts and parts[0] is not Hole.ARGUMENTS:
        part, parts = parts[0], parts[1:]
        if isinstance(part, tuple):
            mark = str(part[0])
            rest = text[position : position + len(mark)]
            if rest == mark:
                parts = part + parts
            elif mark.startswith(rest):
                return None
            continue
        if isinstance(part, Hole) and part not in holes:
            match = _PATTERNS[part].match(text, position)
            if match is None or match.end() == len(text):
                return None
            holes[part], position = match[0], match.end()
            continue
        mark = holes[part] if isinstance(part, Hole) else part
        if not text.startswith(mark, position):
            return None
        position += len(mark)
    name, call_id, number = map(holes.get, (Hole.NAME, Hole.ID, Hole.NUMBER))
    return Head(name, call_id, number, position, parts[1:])
