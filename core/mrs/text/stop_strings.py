"""Ends a text at the first of some strings."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes on a text that arrives in pieces, up to the first of `strings`.

    Text that may be the start of one is delayed. `found` is the string that ended the text; it is
    passed on, too, if the object `keeps` it.
    """

    def __init__(self, strings: Sequence[str], *, keeps: bool = False) -> None:
        self._keeps = keeps
        self.found: str | None = None
        self._strings = [text for text in strings if text]
        self._pending = ""

    def push(self, text: str) -> str:
        """What is certain with the next text, often empty; "" after a stop string."""
        if self.found is not None:
            return ""
        text = self._pending + text
        cut, self.found = self._first(text)
        if self.found is None:
            cut = len(text) - self._possible_length(text)
        elif self._keeps:
            cut += len(self.found)
        self._pending = "" if self.found is not None else text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The delayed text where no more text can follow it."""
        text, self._pending = self._pending, ""
        return text

    def _first(self, text: str) -> tuple[int, str | None]:
        """Start and text of the stop string that ends first; (0, None) without one."""
        matches = [(text.find(stop), stop) for stop in self._strings if stop in text]
        return min(matches, key=lambda at: (at[0] + len(at[1]), at[0]), default=(0, None))

    def _possible_length(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = max(map(len, self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._strings):
                return length
        return 0
