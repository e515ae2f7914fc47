"""Where a grammar begins in a reply of a model that thinks first."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from mrs.grammar.lark import LarkGrammar
from mrs.grammar.source import Grammars
from mrs.text.thoughts import USUAL, ThoughtMarks
from mrs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mrs.text.text_processor import TextProcessor


class Thought(Enum):
    """What a reply has before its answer.

    NONE      nothing
    POSSIBLE  a thought in tags, if the model opens one
    OPEN      the rest of a thought that the prompt opened
    CHANNELS  messages in the harmony format; the answer is in the channel `final`
    ANALYSIS  the same, but the grammar has the answer's channel
    """

    NONE = "none"
    POSSIBLE = "possible"
    OPEN = "open"
    CHANNELS = "channels"
    ANALYSIS = "analysis"


def thought_after(
    text: TextProcessor,
    chat_ids: Sequence[int] | None,
    thinking: bool | None,
    *,
    has_channel: bool = False,
) -> Thought:
    """What a reply may have before its answer, after `chat_ids`; None if it continues a text.

    With `has_channel` the grammar itself has the answer's channel, if there are channels.
    """
    if chat_ids is None or text.template is None:
        return Thought.NONE
    if text.tokenizer.is_harmony:
        return Thought.ANALYSIS if has_channel else Thought.CHANNELS
    if text.opening(chat_ids):
        return Thought.OPEN
    if thinking is not False and text.may_think(chat_ids):
        return Thought.POSSIBLE
    return Thought.NONE


def after_thought(
    grammars: Grammars, thought: Thought, tokenizer: Tokenizer, marks: ThoughtMarks = USUAL
) -> Grammars:
    """`grammars` with a thought in `marks` before the first of them, which is the start."""
    if thought is Thought.NONE:
        return grammars
    lark = LarkGrammar(tokenizer)
    if thought in (Thought.CHANNELS, Thought.ANALYSIS):
        answer = "<|channel|>final<|message|>" if thought is Thought.CHANNELS else ""
        lark.rule("start", f"thought* {lark.text(answer)} @answer")
        opening = lark.text("<|channel|>analysis<|message|>")
        lark.rule("thought", f"{opening} {lark.until('<|end|><|start|>assistant')}")
    else:
        opening = "" if thought is Thought.OPEN else lark.text(marks.open)
        first = "thought" if thought is Thought.OPEN else f"(thought | {lark.text(marks.plain)})"
        lark.rule("start", f"{first} @answer")
        lark.rule("thought", f"{opening} {lark.until(marks.close)} {lark.text(marks.after)}")
    return [*lark.grammars, {**grammars[0], "name": "answer"}, *grammars[1:]]
