"""Follows a reply token by token: which of its tokens are a thought."""

from __future__ import annotations

from typing import Protocol

from mrs.text.harmony import is_thought
from mrs.text.thoughts import ThoughtMarks
from mrs.text.tokenizer import Tokenizer


class ThoughtTokens(Protocol):
    """The thought of one reply so far; `copy.copy` makes another that goes on from here.

    num_tokens  tokens of thoughts and of their marks, as far as the reply has them
    num_inside  tokens after the opening mark
    is_inside   whether the next token goes on with a thought
    is_divided  whether the last tokens are a part of a character
    """

    num_tokens: int
    num_inside: int
    is_inside: bool
    is_divided: bool

    def push(self, token: int) -> None:
        """Follow the next token."""


class MarkedThought:
    """A thought in marks at the start of a reply, or in the rest of one that the prompt opened."""

    def __init__(self, tokenizer: Tokenizer, marks: ThoughtMarks, *, is_open: bool) -> None:
        self._tokenizer = tokenizer
        self._controls = controls_of(tokenizer, marks)
        self._open, self._close = marks.open.strip().encode(), marks.close.encode()
        self._text = b""
        self._is_over = False
        self._num_seen = self.num_tokens = self.num_inside = 0
        self.is_inside, self.is_divided = is_open, False

    def push(self, token: int) -> None:
        if self._is_over:
            return
        self._num_seen += 1
        self._text += self._controls.get(token) or self._tokenizer.piece(token)
        if self.is_inside:
            self.num_inside += 1
        elif (start := self._text.lstrip()).startswith(self._open):
            self.is_inside, self._text = True, start[len(self._open) :]
        else:
            self._is_over = not self._open.startswith(start)
            return
        self.num_tokens = self._num_seen
        if self._close in self._text:
            self.is_inside, self._is_over = False, True
        self._text = self._text[-max(len(self._close), 4) :]
        self.is_divided = _is_divided(self._text)


class ChannelThoughts:
    """The messages of a reply in the harmony format that are neither its answer nor a call.

    With `has_calls` a message to a function is a call.
    """

    def __init__(self, tokenizer: Tokenizer, *, has_calls: bool) -> None:
        self._tokenizer = tokenizer
        self._text_of = {i: text for text, i in tokenizer.control_ids.items()}
        self._has_calls = has_calls
        self._text = b""
        #: Tokens of the header that is being written; 0 outside of headers.
        self._num_header = 0
        self.num_tokens = self.num_inside = 0
        self.is_inside = self.is_divided = False

    def push(self, token: int) -> None:
        text = self._text_of.get(token)
        if text in ("<|start|>", "<|channel|>"):
            self.is_inside, self._text = False, b""
            self._num_header += 1
        elif text == "<|message|>" and self._num_header:
            self.is_inside = is_thought(self._text, has_calls=self._has_calls)
            self.num_tokens += (self._num_header + 1) * self.is_inside
            self._num_header, self._text = 0, b""
        elif self._num_header:
            self._num_header += 1
            self._text += self._tokenizer.piece(token)
        elif self.is_inside:
            self.num_tokens += 1
            self.num_inside += 1
            self.is_inside = text != "<|end|>"
            self._text = (self._text + self._tokenizer.piece(token))[-4:]
            self.is_divided = _is_divided(self._text)


def controls_of(tokenizer: Tokenizer, marks: ThoughtMarks) -> dict[int, bytes]:
    """The control tokens in marks, which the text of a reply has to show, by id."""
    spelled = f"{marks.open}\n{marks.close}\n{marks.after}\n{marks.plain}"
    return {i: text.encode() for text, i in tokenizer.control_ids.items() if text in spelled}


def _is_divided(text: bytes) -> bool:
    """Whether a text ends within a character."""
    for back in range(1, min(len(text), 3) + 1):
        byte = text[-back]
        if byte >> 6 != 0b10:  # the first byte of a character says how many it has
            return (byte >> 5 == 0b110) + 2 * (byte >> 4 == 0b1110) + 3 * (byte >> 3 == 30) >= back
    return False
