"""Where a reply thinks and where it answers."""

from __future__ import annotations

from collections.abc import Iterator

OPEN, CLOSE = "<think>", "</think>"


class ThoughtSplitter:
    """Splits a reply that arrives in pieces, its tags taken away.

    Thoughts stand between `<think>` and `</think>` at the very beginning; tags further on are text
    like any other. What may yet become a tag is held back.
    """

    def __init__(self) -> None:
        self._held = ""
        self._tag: str | None = OPEN

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Pieces of text, each with whether it is thought."""
        self._held += text
        if self._tag == OPEN:
            start = self._held.lstrip()
            if start.startswith(OPEN):
                self._tag, self._held = CLOSE, start[len(OPEN) :]
            elif not OPEN.startswith(start):
                self._tag = None
        if self._tag == CLOSE:
            thought, closed, answer = self._held.partition(CLOSE)
            if closed:
                yield from _piece(True, thought)
                self._tag, self._held = None, answer
            else:
                ready = len(thought) - _begun(thought, CLOSE)
                yield from _piece(True, thought[:ready])
                self._held = thought[ready:]
        if self._tag is None:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[bool, str]]:
        """What was held back and became no tag."""
        held, self._held = self._held, ""
        yield from _piece(self._tag == CLOSE, held)


def _piece(is_thought: bool, text: str) -> Iterator[tuple[bool, str]]:
    if text:
        yield is_thought, text


def _begun(text: str, tag: str) -> int:
    """How many of the tag's first characters `text` ends with."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
