"""Where a grammar begins in a reply of a model that thinks first."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from mrs.grammar.source import Grammars
from mrs.text.thoughts import CLOSE, OPEN
from mrs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mrs.text.text_processor import TextProcessor

_ANY_TEXT = r"/(.|\n)*/"


class Thought(Enum):
    """What a reply has before its answer.

    NONE      nothing
    POSSIBLE  a thought in tags, if the model opens one
    OPEN      the rest of a thought that the prompt opened
    CHANNELS  messages in the harmony format; the answer is in the channel `final`
    """

    NONE = "none"
    POSSIBLE = "possible"
    OPEN = "open"
    CHANNELS = "channels"


def thought_after(
    text: TextProcessor, chat_ids: Sequence[int] | None, thinking: bool | None
) -> Thought:
    """What a reply may have before its answer, after `chat_ids`; None if it continues a text."""
    if chat_ids is None or text.template is None:
        return Thought.NONE
    if text.tokenizer.is_harmony:
        return Thought.CHANNELS
    if text.opening(chat_ids):
        return Thought.OPEN
    if thinking is not False and text.may_think(chat_ids):
        return Thought.POSSIBLE
    return Thought.NONE


def after_thought(grammars: Grammars, thought: Thought, tokenizer: Tokenizer) -> Grammars:
    """`grammars` with a thought before the first of them, which is the start."""
    if thought is Thought.NONE:
        return grammars
    if thought is Thought.CHANNELS:
        rules = _channels(tokenizer)
    else:
        opened = "" if thought is Thought.OPEN else literal(OPEN, tokenizer)
        optional = "?" if thought is Thought.POSSIBLE else ""
        rules = (
            f"start: thought{optional} @answer\n"
            f'thought: {opened} thinking "\\n\\n"\n'
            f"{text_until('thinking', CLOSE, tokenizer)}"
        )
    return [{"lark_grammar": rules}, {**grammars[0], "name": "answer"}, *grammars[1:]]


def _channels(tokenizer: Tokenizer) -> str:
    channel, message, end, start = (
        literal(f"<|{name}|>", tokenizer) for name in ("channel", "message", "end", "start")
    )
    return (
        f'start: thought* {channel} "final" {message} @answer\n'
        f'thought: {channel} "analysis" {message} TEXT {end} {start} "assistant"\n'
        f"TEXT: {_ANY_TEXT}"
    )


def literal(text: str, tokenizer: Tokenizer) -> str:
    """A text in a Lark rule: a control token by its id, or the letters of the text."""
    token_id = tokenizer.control_ids.get(text)
    return json.dumps(text, ensure_ascii=False) if token_id is None else f"<[{token_id}]>"


def text_until(rule: str, mark: str, tokenizer: Tokenizer) -> str:
    """A Lark rule for any text up to and with the first `mark`."""
    if mark in tokenizer.control_ids:
        return f"{rule}: {_ANY_TEXT} {literal(mark, tokenizer)}"
    pattern = re.escape(mark).replace("/", r"\/")
    return rf"{rule}[lazy]: /(.|\n)*{pattern}/"
