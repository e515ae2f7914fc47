"""Splits the text of a reply into content and calls of tools, while it arrives."""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Iterator

from mrs.events import TextDelta, ToolCallDelta
from mrs.text.thoughts import CLOSE, OPEN
from mrs.tools.call_format import CallFormat, Parts, first_text
from mrs.tools.call_head import Head, read_head
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
        self._steps = self._parse()
        self._text = ""
        self._is_over = False
        self.num_calls = 0
        next(self._steps)

    def push(self, text: str) -> list[Delta]:
        """What is certain with the next text."""
        self._text += text
        deltas = []
        while (delta := next(self._steps)) is not None:
            deltas.append(delta)
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back at the end of a reply."""
        self._is_over = True
        return self.push("")

    def _parse(self) -> Iterator[Delta | None]:
        """Yields None where it needs more text."""
        yield None
        yield from self._thought()
        parts = self._style.decoded or self._style.first
        if self._style.answer and not self._style.decoded:
            yield from self._answer()
        if self._style.is_at_start:
            yield from self._call_or_text(first_text(parts))
        while not self._is_over or self._text:
            yield from self._content(first_text(parts))
            if self._text:
                yield from self._call(parts)
                parts = self._style.following or parts
        while True:
            yield None

    def _answer(self) -> Iterator[Delta | None]:
        """Removes what is before the text of a reply without calls."""
        answer = self._style.answer
        while answer.startswith(self._text) and self._text != answer and not self._is_over:
            yield None
        self._text = self._text.removeprefix(answer)

    def _call_or_text(self, opening: str) -> Iterator[Delta | None]:
        """Goes on at a call if the whole reply is one; passes on the text otherwise."""
        start = opening.lstrip()
        while start.startswith(self._text.lstrip()) and not self._is_over:
            yield None
        if self._text.lstrip().startswith(start):
            self._text = opening + self._text.lstrip()[len(start) :]
            return
        while True:
            if not self._is_required:
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
            position = self._text.find(opening)
            if self.num_calls:  # between and after calls
                self._text = self._text[max(position, 0) :]
            elif position >= 0:
                yield from self._take(position)
            if position >= 0:
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

    def _call(self, parts: Parts) -> Iterator[Delta | None]:
        """A call at the start of the text; one that is cut off is passed on as far as it came."""
        head = yield from self._head(parts)
        if head is None:
            return
        if head.name is None:
            yield from self._arguments_first(head.rest)
            return
        index = self.num_calls
        yield self._start(head)
        if self._style.arguments.is_json:
            yield from self._json(index)
            return
        written = yield from self._whole_arguments(head.rest)
        if written is not None:
            yield self._converted(index, written, head.name)

    def _head(self, parts: Parts) -> Generator[Delta | None, None, Head | None]:
        """Returns the head at the start of the text, which it removes; None if it is cut off."""
        while (head := read_head(parts, self._text)) is None:
            if self._is_over:
                self._text = ""
                return None
            yield None
        self._text = self._text[head.length :]
        return head

    def _start(self, head: Head) -> ToolCallDelta:
        """The name of a call, and the id that the model wrote, or a new one."""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        call_id = head.call_id or secrets.token_hex(_ID_CHARACTERS)[:_ID_CHARACTERS]
        if self._style.id_form:
            call_id = self._style.id_form.format(name=head.name, number=head.number)
        return ToolCallDelta(index, call_id, head.name)

    def _arguments_first(self, rest: Parts) -> Iterator[Delta | None]:
        """The arguments of a call, and its name after them."""
        written = yield from self._whole_arguments(rest)
        head = None if written is None else (yield from self._head(rest))
        if written is not None and head is not None:
            index = self.num_calls
            yield self._start(head)
            yield self._converted(index, written, head.name)

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

    def _whole_arguments(self, rest: Parts) -> Generator[Delta | None, None, str | None]:
        """Returns the text of the arguments, which it removes; None if they are cut off."""
        after = first_text(rest) or self._style.after
        while (length := self._style.arguments.length(self._text, after)) is None:
            if self._is_over:
                self._text = ""
                return None
            yield None
        written, self._text = self._text[:length], self._text[length:]
        return written

    def _converted(self, index: int, written: str, name: str | None) -> ToolCallDelta:
        """Arguments as JSON."""
        try:
            read = self._style.arguments.read(written, self._schemas.get(name or "", {}))
        except (ValueError, RecursionError):
            read = {}
        return ToolCallDelta(index, arguments=json.dumps(read, ensure_ascii=False))

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
