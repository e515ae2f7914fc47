"""Text of a reply while its tokens arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from mrs.text.harmony import HarmonyReply
from mrs.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns token ids into text that can be shown at once.

    Never gives half a UTF-8 character, and keeps back what may turn out to be the start of a stop
    string. The cost of a token does not grow with the reply. `continues_text` says that the reply
    goes on in the middle of a text, so that a SentencePiece space at its start is shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str] = (),
        *,
        continues_text: bool = False,
    ) -> None:
        self.stop_string: str | None = None
        self._piece = HarmonyReply(tokenizer).piece if tokenizer.is_harmony else tokenizer.piece
        self._stop_strings = [text for text in stop_strings if text]
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = tokenizer.strips_leading_space and not continues_text
        self._held = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; `stop_string` says which, and nothing follows it."""
        return self.stop_string is not None

    def push(self, token_id: int) -> str:
        """The text that became certain with this token, often empty; "" after a stop string."""
        if self.stopped:
            return ""
        text = self._utf8.decode(self._piece(token_id))
        if self._strip_space and text:
            text = text.removeprefix(" ")
            self._strip_space = False
        text = self._held + text
        cut, self.stop_string = self._first_stop(text)
        if self.stop_string is None:
            cut = len(text) - self._length_to_hold(text)
        self._held = "" if self.stopped else text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The text still kept back when no more tokens come; half a character is dropped."""
        text, self._held = self._held, ""
        return text

    def _first_stop(self, text: str) -> tuple[int, str | None]:
        """Where the stop string that is complete first begins, and which it is."""
        found = [(text.find(stop), stop) for stop in self._stop_strings if stop in text]
        return min(found, key=lambda at: (at[0] + len(at[1]), at[0]), default=(0, None))

    def _length_to_hold(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings):
                return length
        return 0
