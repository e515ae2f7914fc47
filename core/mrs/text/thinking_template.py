"""What a chat template says of thoughts, found by rendering conversations with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Any, get_args

from mrs.errors import MrsError
from mrs.request import Effort
from mrs.text.template import ChatTemplate
from mrs.text.thoughts import OPEN, ThoughtMarks

#: Variables of templates that say how long to think.
EFFORT_VARIABLES = ("reasoning_effort", "reasoning_strength")

_QUESTION, _THOUGHT, _ANSWER = "Qx7 asks", "Tx7 thinks", "Ax7 answers"
_USER = {"role": "user", "content": _QUESTION}
_TAG = r"(?:<[^<>\n]+>|\[/?[A-Z_]+\])"
#: The mark at the end of a text, and the marks of an empty thought there.
_OPENED = re.compile(rf"{_TAG}\w*\s*\Z")
_EMPTY = re.compile(rf"({_TAG}\w*)\s*({_TAG})\s*\Z")
#: A mark whose other half has a slash, at the end of a text.
_OPENS = re.compile(r"(<[\w:]+>|\[[A-Z_]+\])\s*\Z")
#: White space, a mark or a line without any, and what follows it.
_CLOSED = re.compile(rf"(\s*)({_TAG}|[^\n]+)(.*)\Z", re.DOTALL)
#: Marks of templates that know thoughts only in the text of earlier replies, to cut them off.
_CUT_OFF = (
    ThoughtMarks(),
    ThoughtMarks("<|channel>thought", "<channel|>", after=""),
    ThoughtMarks("[THINK]", "[/THINK]", before="", after=""),
)


class ThinkingTemplate:
    """The marks of thoughts in a template, and its switches. Each is found when first asked for."""

    def __init__(self, template: ChatTemplate, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = special_tokens

    @cached_property
    def marks(self) -> ThoughtMarks | None:
        """The marks around a thought; None if the template has none.

        A template that only cuts thoughts off has marks of `_CUT_OFF`.
        """
        thinking_prompt = self._rendered(thinking=True) or self._rendered() or ""
        for message in _with_thought():
            if (marks := self._around(message, thinking_prompt)) is not None:
                return replace(marks, plain=self._plain(marks, thinking_prompt))
        without = self._rendered(thinking=False) or ""
        empty, opened = _EMPTY.search(without), _OPENS.search(thinking_prompt)
        if empty is not None and empty[1] not in thinking_prompt:
            return ThoughtMarks(empty[1], empty[2])
        if opened is not None and (opened[1] == OPEN or opened[1] not in without):
            return ThoughtMarks(opened[1], f"{opened[1][0]}/{opened[1][1:]}")
        return next((each for each in _CUT_OFF if each.close in self._template.source), None)

    @cached_property
    def has_switch(self) -> bool:
        """Whether a variable switches thinking on or off."""
        on, off = self._rendered(thinking=True), self._rendered(thinking=False)
        return on != off and on == self._rendered(thinking=True)  # not the time of day

    @cached_property
    def effort_variable(self) -> str | None:
        """The variable that says how long to think, if there is one."""
        for name in EFFORT_VARIABLES:
            renderings = {
                self._rendered(thinking=True, **{name: each}) for each in get_args(Effort)
            }
            if len(renderings - {None}) > 1:
                return name
        return None

    def _around(self, message: Mapping[str, Any], prompt: str) -> ThoughtMarks | None:
        """The marks in a conversation with a thought; `prompt` is the prompt of a reply."""
        whole = self._rendered(message, thinking=True, begins_reply=False) or ""
        before, mark, rest = whole.partition(_THOUGHT)
        between, has_next, _ = rest.partition(_ANSWER)
        if not (mark and has_next and between.strip()) or between.lstrip()[0] in "'\"}":
            return None  # no thought, or one in the notation of a list
        opening = before[_num_same(before, prompt) :].rstrip().lstrip("\n")
        opened = _OPENED.search(before)
        last = opened[0].strip() if opened else ""
        if not opening or (last and prompt.rstrip().endswith(last)):
            opening = last  # the prompt of a reply has it already
        marks = _CLOSED.match(between)
        if marks is None or not opening:
            return None
        after = "" if "tool_calls" in message else marks[3]
        return ThoughtMarks(opening, marks[2], marks[1], after)

    def _plain(self, marks: ThoughtMarks, prompt: str) -> str:
        """What precedes an answer without a thought; nothing if that has an empty thought."""
        answer = {"role": "assistant", "content": _ANSWER}
        whole = self._rendered(answer, thinking=True, begins_reply=False) or ""
        before, mark, _ = whole.partition(_ANSWER)
        plain = before[len(prompt) :].strip("\n") if mark and before.startswith(prompt) else ""
        return "" if marks.close in plain else plain

    def _rendered(
        self,
        *messages: Mapping[str, Any],
        thinking: bool | None = None,
        begins_reply: bool = True,
        **variables: Any,
    ) -> str | None:
        """A question and `messages` as the template writes them; None if it refuses them."""
        with suppress(MrsError):
            return self._template.render(
                [_USER, *messages],
                special_tokens=self._special_tokens,
                thinking=thinking,
                variables=variables,
                begins_reply=begins_reply,
            )
        return None


def _with_thought() -> Iterator[dict[str, Any]]:
    """A reply with a thought, in the forms that templates know; one has a call of a tool."""
    fields = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _THOUGHT)
    yield {"role": "assistant", "content": _ANSWER, **fields}
    parts = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _ANSWER}]
    yield {"role": "assistant", "content": parts}
    called = {"name": _ANSWER, "arguments": {}}
    call = {"id": "abcdefghi", "type": "function", "function": called}
    yield {"role": "assistant", "content": "", "tool_calls": [call], **fields}


def _num_same(one: str, other: str) -> int:
    """The number of first characters that two texts have in common."""
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
