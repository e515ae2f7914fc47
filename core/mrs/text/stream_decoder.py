"""Decodes a reply while its tokens arrive."""

from __future__ import annotations

import codecs

from mrs.text.harmony import HarmonyReply
from mrs.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes token ids to text incrementally, at a constant cost per token.

    Incomplete UTF-8 characters are delayed. With `continues_text` the reply continues a text, so
    that a SentencePiece space at its start is output. Control tokens are left out, but for those
    in `shown`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        continues_text: bool = False,
        shown: frozenset[str] = frozenset(),
    ) -> None:
        self._shown = {
            i: text.encode() for text, i in tokenizer.control_ids.items() if text in shown
        }
        harmony = HarmonyReply(tokenizer, shows_calls=bool(shown))
        self._piece = harmony.piece if tokenizer.is_harmony else tokenizer.piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = tokenizer.strips_leading_space and not continues_text

    def push(self, token_id: int) -> str:
        """The text that is complete with this token, often empty.

        A character that is incomplete at the end of a reply is left out.
        """
        text = self._utf8.decode(self._shown.get(token_id) or self._piece(token_id))
        if self._strip_space and text:
            text = text.removeprefix(" ")
            self._strip_space = False
        return text
