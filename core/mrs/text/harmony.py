"""Converts replies in the harmony format, which consist of channels, to thoughts and answer."""

from __future__ import annotations

import re

from mrs.text.thoughts import CLOSE, OPEN
from mrs.text.tokenizer import Tokenizer

#: Noncharacters before the name and the arguments of a call.
CALL_NAME, CALL_ARGUMENTS = "\ufdd4", "\ufdd5"
_RECIPIENT = re.compile(rb"to=functions\.([\w.-]+)")


class HarmonyReply:
    """Converts one reply token by token; thoughts are put in `<think>` tags.

    With `shows_calls` a message to a function is CALL_NAME, its name, CALL_ARGUMENTS and its text.

    Each message is `<|channel|>name<|message|>text<|end|>`; the channel `final` has the answer.
    Text outside of messages, as some fine-tuned models write it, is passed through.
    """

    def __init__(self, tokenizer: Tokenizer, *, shows_calls: bool = False) -> None:
        self._tokenizer = tokenizer
        self._shows_calls = shows_calls
        self._text_of = {i: text for text, i in tokenizer.control_ids.items()}
        self._header: bytearray | None = None
        self._thinks = False

    def piece(self, token_id: int) -> bytes:
        """The bytes of text for the next token of the reply."""
        token = self._text_of.get(token_id)
        if token in ("<|start|>", "<|channel|>"):
            self._header = bytearray()
        elif token == "<|message|>" and self._header is not None:
            channel, self._header = self._header, None
            return self._enter(bytes(channel))
        elif self._header is not None:
            self._header += self._tokenizer.piece(token_id)
        else:
            return self._tokenizer.piece(token_id)
        return b""

    def _enter(self, channel: bytes) -> bytes:
        call = _RECIPIENT.search(channel) if self._shows_calls else None
        thought, self._thinks = self._thinks, is_thought(channel, has_calls=self._shows_calls)
        if thought and self._thinks:
            return b"\n\n"
        if self._thinks:
            return f"{OPEN}\n".encode()
        text = f"\n{CLOSE}\n\n".encode() if thought else b""
        if call is not None:
            text += CALL_NAME.encode() + call[1] + CALL_ARGUMENTS.encode()
        return text


def is_thought(header: bytes, *, has_calls: bool) -> bool:
    """Whether the message after this header is a thought, not an answer and no call."""
    return not (header.startswith(b"final") or (has_calls and _RECIPIENT.search(header)))
