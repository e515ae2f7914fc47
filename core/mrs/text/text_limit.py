"""Refuses texts that no context holds before they are rendered and tokenized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mrs.errors import ContextFull, TextTooLong
from mrs.process.json_size import json_characters
from mrs.process.request_memory import CUT_TEXT_BYTES, TOKEN_TEXT_BYTES, WHOLE_TEXT_BYTES
from mrs.request import Message, text_of
from mrs.text.backend import encode
from mrs.text.tokenizer import Tokenizer

#: Text that is read for any context: a fraction of a second of work.
_ALWAYS_BYTES = 2**17
#: What a template and its process add to a message, however short it is.
_MESSAGE_BYTES = 64
#: Small enough for tokenizers whose time grows with the square of a word.
_PIECE_CHARACTERS = 2**14
#: Most tokens that are added if a word is cut between two of them: measured up to 2, and in
#: WordPiece, where a word of more than 100 characters is one unknown token, up to 100.
_CUT_TOKENS = 128


@dataclass(frozen=True)
class TextLimit:
    """How much text is read for a context of `context_tokens`.

    A prompt that must fit has no more bytes than a context full of the longest token. One that is
    cut or only counted may have TOKEN_TEXT_BYTES for each token, or CUT_TEXT_BYTES.
    """

    tokenizer: Tokenizer
    context_tokens: int

    @property
    def _most_cut_bytes(self) -> int:
        return max(CUT_TEXT_BYTES, TOKEN_TEXT_BYTES * self.context_tokens)

    def has_room(self, messages: Sequence[Message]) -> bool:
        """Whether messages that are cut or counted are read."""
        return _size_of_messages(messages) <= self._most_cut_bytes

    def check_messages(
        self, messages: Sequence[Message], *more: Any, must_fit: bool = True
    ) -> None:
        """Raise TextTooLong for messages, and `more` values of JSON, that are not read."""
        given = sum(json_characters(each) for each in more if each)
        self._check(_size_of_messages(messages) + given, must_fit)

    def check(self, *texts: str, must_fit: bool = True) -> None:
        """Raise ContextFull for texts of one prompt that are too long, before all are read."""
        self._check(sum(map(_size, texts)), must_fit)
        if must_fit:
            for text in texts:
                self.check_count(text)

    def _check(self, size: int, must_fit: bool) -> None:
        most = self._most_cut_bytes
        if must_fit and size > _ALWAYS_BYTES:
            most = max(_ALWAYS_BYTES, self.context_tokens * self.tokenizer.longest_bytes)
        if size > most:
            can_be_cut = must_fit and size <= self._most_cut_bytes
            raise TextTooLong(size, most, self.context_tokens, can_be_cut=can_be_cut)

    def check_count(self, text: str) -> None:
        """Raise ContextFull once a text has more tokens than the context, without the rest.

        A text that fits is tokenized whole afterwards, since its words are cut here. One of the
        usual length is not counted.
        """
        usual = max(_ALWAYS_BYTES, TOKEN_TEXT_BYTES * self.context_tokens)
        if len(text) <= min(usual, WHOLE_TEXT_BYTES):
            return
        tokens, most = 0, self.context_tokens
        for start in range(0, len(text), _PIECE_CHARACTERS):
            piece = text[start : start + _PIECE_CHARACTERS]
            tokens += len(encode(self.tokenizer.backend, piece, add_special_tokens=False))
            if tokens > most:
                raise ContextFull(self.context_tokens, self.context_tokens, is_counted=False)
            most += _CUT_TOKENS


def _size_of_messages(messages: Sequence[Message]) -> int:
    """The bytes of all that templates read of messages, without their images."""
    return sum(_MESSAGE_BYTES + sum(map(_size, _texts(each))) for each in messages)


def _texts(message: Message) -> Iterable[str]:
    yield text_of(message)
    yield message.get("reasoning", "")
    yield message.get("name", "")
    for call in message.get("tool_calls", ()):
        yield call["name"]
        yield call["arguments"]


def _size(text: str) -> int:
    """The bytes of a text in UTF-8; lone surrogates are refused elsewhere."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
