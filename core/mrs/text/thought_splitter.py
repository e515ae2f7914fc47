"""Splits a reply into thoughts and the answer."""

from __future__ import annotations

from collections.abc import Iterator

from mrs.text.thoughts import CLOSE, OPEN, USUAL, ThoughtMarks


class ThoughtSplitter:
    """Splits a reply that arrives in pieces, and removes the marks.

    Thoughts are between the marks at the very beginning, by default `<think>` and `</think>`; later
    marks are ordinary text. Text that may be the beginning of a mark is buffered. With `is_open`
    the first mark is not part of the reply.
    """

    def __init__(self, marks: ThoughtMarks = USUAL, *, is_open: bool = False) -> None:
        self._buffer = ""
        self._open, self._close = marks.open.strip(), marks.close
        self._mark: str | None = self._close if is_open else self._open

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Pieces of text, each with whether it is a thought."""
        self._buffer += text
        if self._mark == self._open:
            start = self._buffer.lstrip()
            if start.startswith(self._open):
                self._mark, self._buffer = self._close, start[len(self._open) :]
            elif not self._open.startswith(start):
                self._mark = None
        if self._mark == self._close:
            thought, closed, answer = self._buffer.partition(self._close)
            if closed:
                yield from _piece(True, thought)
                self._mark, self._buffer = None, answer
            else:
                ready = len(thought) - _partial(thought, self._close)
                yield from _piece(True, thought[:ready])
                self._buffer = thought[ready:]
        if self._mark is None:
            yield from self.finish()

    @property
    def is_inside(self) -> bool:
        """Whether the text so far ends in a thought."""
        return self._mark == self._close

    def finish(self) -> Iterator[tuple[bool, str]]:
        """The buffered text, which was not a mark."""
        rest, self._buffer = self._buffer, ""
        yield from _piece(self._mark == self._close, rest)


class UsualMarks:
    """Writes the marks of a reply that arrives in pieces as `<think>` and `</think>`.

    The headers of an answer are left out.
    """

    def __init__(self, marks: ThoughtMarks, *, is_open: bool) -> None:
        self._splitter = ThoughtSplitter(marks, is_open=is_open)
        self._is_open = is_open
        #: What may precede the answer until that begins, and what has come of it.
        self._headers = marks.headers
        self._held = ""

    def feed(self, text: str) -> str:
        """What is certain with the next text."""
        parts = []
        for is_thought, part in self._splitter.feed(text):
            known = part if is_thought else self._without_header(part)
            parts.append(self._mark(is_thought) + known)
        return "".join(parts) + self._mark(self._splitter.is_inside)

    def finish(self) -> str:
        """The rest, which was not a mark."""
        held, self._held = self._held, ""
        return held + "".join(part for _, part in self._splitter.finish())

    def _without_header(self, text: str) -> str:
        if not self._headers:
            return text
        self._held += text
        start = self._held.lstrip()
        if any(each.startswith(start) and each != start for each in self._headers):
            return ""
        whole = (each for each in self._headers if start.startswith(each))
        header = next(whole, None)
        answer = self._held if header is None else start.removeprefix(header)
        self._headers, self._held = set(), ""
        return answer

    def _mark(self, is_thought: bool) -> str:
        """The mark between the text so far and what follows."""
        was_open, self._is_open = self._is_open, is_thought
        return "" if was_open == is_thought else OPEN if is_thought else CLOSE


def _piece(is_thought: bool, text: str) -> Iterator[tuple[bool, str]]:
    if text:
        yield is_thought, text


def _partial(text: str, mark: str) -> int:
    """The number of the mark's first characters at the end of `text`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
