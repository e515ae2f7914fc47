"""Splits a reply into thoughts and the answer."""

from __future__ import annotations

from collections.abc import Iterator

from mrs.text.thoughts import CLOSE, OPEN


class ThoughtSplitter:
    """Splits a reply that arrives in pieces, and removes the tags.

    Thoughts are between `<think>` and `</think>` at the very beginning; later tags are ordinary
    text. Text that may be the beginning of a tag is buffered.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._tag: str | None = OPEN

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Pieces of text, each with whether it is a thought."""
        self._buffer += text
        if self._tag == OPEN:
            start = self._buffer.lstrip()
            if start.startswith(OPEN):
                self._tag, self._buffer = CLOSE, start[len(OPEN) :]
            elif not OPEN.startswith(start):
                self._tag = None
        if self._tag == CLOSE:
            thought, closed, answer = self._buffer.partition(CLOSE)
            if closed:
                yield from _piece(True, thought)
                self._tag, self._buffer = None, answer
            else:
                ready = len(thought) - _partial(thought, CLOSE)
                yield from _piece(True, thought[:ready])
                self._buffer = thought[ready:]
        if self._tag is None:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[bool, str]]:
        """The buffered text, which was not a tag."""
        rest, self._buffer = self._buffer, ""
        yield from _piece(self._tag == CLOSE, rest)


def _piece(is_thought: bool, text: str) -> Iterator[tuple[bool, str]]:
    if text:
        yield is_thought, text


def _partial(text: str, tag: str) -> int:
    """The number of the tag's first characters at the end of `text`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
