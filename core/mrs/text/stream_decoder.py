"""Decodes a reply while its tokens arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from mrs.text.harmony import HarmonyReply
from mrs.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes token ids to text incrementally, at a constant cost per token.

    Incomplete UTF-8 characters and text that may be the start of a stop string are delayed. With
    `continues_text` the reply continues a text, so that a SentencePiece space at its start is
    output. Control tokens are left out, but for those in `shown`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str] = (),
        *,
        continues_text: bool = False,
        shown: frozenset[str] = frozenset(),
    ) -> None:
        self.stop_string: str | None = None
        self._shown = {
            i: text.encode() for text, i in tokenizer.control_ids.items() if text in shown
        }
        harmony = HarmonyReply(tokenizer, shows_calls=bool(shown))
        self._piece = harmony.piece if tokenizer.is_harmony else tokenizer.piece
        self._stop_strings = [text for text in stop_strings if text]
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = tokenizer.strips_leading_space and not continues_text
        self._pending = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; `stop_string` says which, and nothing follows it."""
        return self.stop_string is not None

    def push(self, token_id: int) -> str:
        """The text that is complete with this token, often empty; "" after a stop string."""
        if self.stopped:
            return ""
        text = self._utf8.decode(self._shown.get(token_id) or self._piece(token_id))
        if self._strip_space and text:
            text = text.removeprefix(" ")
            self._strip_space = False
        text = self._pending + text
        cut, self.stop_string = self._first_stop(text)
        if self.stop_string is None:
            cut = len(text) - self._possible_stop_length(text)
        self._pending = "" if self.stopped else text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The delayed text at the end of a reply; an incomplete character is dropped."""
        text, self._pending = self._pending, ""
        return text

    def _first_stop(self, text: str) -> tuple[int, str | None]:
        """Start and text of the stop string that ends first; (0, None) without one."""
        found = [(text.find(stop), stop) for stop in self._stop_strings if stop in text]
        return min(found, key=lambda at: (at[0] + len(at[1]), at[0]), default=(0, None))

    def _possible_stop_length(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings):
                return length
        return 0
