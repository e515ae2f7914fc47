"""Splits the text of a reply into content and calls of tools, while it arrives."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from mrs.events import TextDelta, ToolCallDelta
from mrs.text.thoughts import CLOSE, OPEN
from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonEnd
from mrs.tools.tool_request import ToolRequest

#: Letters and digits of an id; Mistral's templates want exactly nine.
_ID_CHARACTERS = 9

Delta = TextDelta | ToolCallDelta


class CallParser:
    """The parser of one reply. `num_calls` counts the calls so far.

    `shown` are the control tokens of the format, which have to be in the text.
    """

    def __init__(
        self, style: CallFormat, request: ToolRequest, shown: frozenset[str] = frozenset()
    ) -> None:
        self._style = style
        self.shown = shown
        self._is_required = request.is_required
        self._schemas = {tool.name: tool.parameters for tool in request.tools}
        self._before = style.read_before or style.before
        self._between = style.read_between or style.between
        self._steps = self._parse()
        self._text = ""
        self._is_over = False
        self.num_calls = 0
        next(self._steps)

    def push(self, text: str) -> list[Delta]:
        """What is certain with the next text."""
        self._text += text
        found = []
        while (delta := next(self._steps)) is not None:
            found.append(delta)
        return found

    def finish(self) -> list[Delta]:
        """What was held back at the end of a reply."""
        self._is_over = True
        return self.push("")

    def _parse(self) -> Iterator[Delta | None]:
        """Yields None where it needs more text."""
        yield None
        yield from self._thought()
        opening = self._style.begin + self._before
        if self._style.is_at_start:
            yield from self._call_or_text(opening)
        while not self._is_over or self._text:
            yield from self._content(opening)
            if self._text.startswith(opening):
                yield from self._call(opening)
                opening = self._style.separator + self._before
        while True:
            yield None

    def _call_or_text(self, opening: str) -> Iterator[Delta | None]:
        """A whole reply that is a call if it begins with `opening`, and text otherwise."""
        while opening.startswith(self._text.lstrip()) and not self._is_over:
            yield None
        if self._text.lstrip().startswith(opening):
            yield from self._content(opening)
            yield from self._call(opening)
            self._text = ""
        while True:
            if not self.num_calls and not self._is_required:
                yield from self._take(len(self._text))
            yield None

    def _thought(self) -> Iterator[Delta | None]:
        """Passes on a thought at the start of the reply, whatever is in it."""
        while not self._is_over and OPEN.startswith(self._text.lstrip()[: len(OPEN)]):
            if self._text.lstrip().startswith(OPEN):
                break
            yield None
        if self._text.lstrip().startswith(OPEN):
            while CLOSE not in self._text and not self._is_over:
                held = _overlap(self._text, CLOSE)
                yield from self._take(len(self._text) - held)
                yield None
            yield from self._take(self._text.find(CLOSE) + len(CLOSE))

    def _content(self, opening: str) -> Iterator[Delta | None]:
        """Passes on text before the next opening, which is then at the start, or the end."""
        while True:
            found = self._text.find(opening)
            if self.num_calls:  # between and after calls
                self._text = self._text[max(found, 0) :]
            elif found >= 0:
                yield from self._take(found)
            if found >= 0:
                return
            if not self.num_calls:
                # A required call that is cut off in its opening is no text.
                may_call = self._is_required or not self._is_over
                held = _overlap(self._text, opening) if may_call else 0
                yield from self._take(len(self._text) - held)
            if self._is_over:
                self._text = ""
                return
            yield None

    def _call(self, opening: str) -> Iterator[Delta | None]:
        """A call at the start of the text; one that is cut off is passed on as far as it came."""
        while (found := self._text.find(self._between, len(opening))) < 0:
            if self._is_over:
                self._text = ""
                return
            yield None
        name = self._text[len(opening) : found]
        self._text = self._text[found + len(self._between) :]
        index, self.num_calls = self.num_calls, self.num_calls + 1
        yield ToolCallDelta(index, secrets.token_hex(_ID_CHARACTERS)[:_ID_CHARACTERS], name)
        if self._style.arguments.is_json:
            yield from self._json(index)
        else:
            yield from self._converted(index, self._schemas.get(name, {}))

    def _json(self, index: int) -> Iterator[Delta | None]:
        end = JsonEnd()
        while True:
            length = end.find(self._text)
            part = self._text if length is None else self._text[:length]
            self._text = self._text[len(part) :]
            if part:
                yield ToolCallDelta(index, arguments=part)
            if length is not None or self._is_over:
                return
            yield None

    def _converted(self, index: int, schema: Mapping[str, Any]) -> Iterator[Delta | None]:
        arguments, after = self._style.arguments, self._style.after
        while (length := arguments.length(self._text, after)) is None:
            if self._is_over:
                self._text = ""
                return
            yield None
        try:
            read = arguments.read(self._text[:length], schema)
        except (ValueError, RecursionError):
            read = {}
        self._text = self._text[length:]
        yield ToolCallDelta(index, arguments=json.dumps(read, ensure_ascii=False))

    def _take(self, count: int) -> Iterator[Delta]:
        taken, self._text = self._text[:count], self._text[count:]
        if taken:
            yield TextDelta(taken)


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that `mark` begins with."""
    return next(
        (length for length in range(min(len(mark) - 1, len(text)), 0, -1)
         if mark.startswith(text[-length:])),
        0,
    )  # fmt: skip
