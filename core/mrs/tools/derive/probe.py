"""Conversations with calls, rendered by the template in question.

Their names, keys and values are words that no template has, so that they are found in the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mrs.errors import MrsError
from mrs.request import Message
from mrs.text.image_placeholders import ContentFormats
from mrs.text.template import ChatTemplate
from mrs.text.template_forms import TemplateForms
from mrs.tools.known_formats import KIMI_ID

QUESTION, ANSWER = "zqquestion", "zqanswer"
NAMES = ("zqtoolone", "zqtooltwo", "zqtoolthree")
#: Nine letters each, as Mistral's templates want them.
IDS = ("zqidaaaaa", "zqidbbbbb", "zqidccccc")
KEYS = ("zqkeyone", "zqkeytwo")
VALUES = ("zqvalueone", "zqvaluetwo")

#: Without them the end of a turn has no text in templates that have it from the tokenizer.
_SPECIAL_TOKENS = {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""}

Given = Mapping[str, Any]
#: The arguments of a first call.
ONE: Given = {KEYS[0]: VALUES[0]}


class Underivable(Exception):
    """The format cannot be derived; the message says why."""


class Unshown(Underivable):
    """The template shows no calls."""


@dataclass(frozen=True)
class Probe:
    """Renders calls whose message has this `content` and whose arguments are text or an object.

    Their ids are in the form `id_form`, if there is one.
    """

    template: ChatTemplate
    contents: ContentFormats
    content: str | None = ""
    has_text_arguments: bool = False
    id_form: str = ""

    def prompt(self, *, begins_reply: bool = True) -> str:
        """What follows the question up to the start of a reply."""
        return self._rendered([], begins_reply=begins_reply)

    def answer(self) -> str:
        """What follows the question if the reply is a text."""
        return self._rendered([{"role": "assistant", "content": ANSWER}])

    def first_call(self) -> str:
        """What follows the question if the reply is a call. Raises Unshown if none is in it."""
        try:
            text = self.calls(ONE)
        except MrsError as error:
            raise Unshown(str(error)) from error
        if KEYS[0] not in text or VALUES[0] not in text:
            raise Unshown("it writes no call")
        return text

    def calls(self, *given: Given) -> str:
        """What follows the question if the reply calls tools with these arguments."""
        calls = [
            {
                "id": self.id_form.format(name=name, number=number) or call_id,
                "type": "function",
                "function": {"name": name, "arguments": self._arguments(arguments)},
            }
            for number, (call_id, name, arguments) in enumerate(
                zip(IDS, NAMES, given, strict=False)
            )
        ]
        reply = {"role": "assistant", "content": self.content, "tool_calls": calls}
        return self._rendered([reply])

    def try_calls(self, *given: Given) -> str | None:
        """The same; None if the template refuses or fails."""
        try:
            return self.calls(*given)
        except MrsError:
            return None

    def _arguments(self, arguments: Given) -> Any:
        if self.has_text_arguments:
            return json.dumps(arguments, ensure_ascii=False)
        return dict(arguments)

    def _rendered(self, replies: Sequence[dict[str, Any]], *, begins_reply: bool = False) -> str:
        conversation = [{"role": "user", "content": QUESTION}, *replies]
        for message in conversation:
            if isinstance(message["content"], str):
                content = self.contents.content(message["role"], [message["content"]], 1)
                message["content"] = content
        rendered = self.template.render(
            conversation,
            special_tokens=_SPECIAL_TOKENS,
            tools=tool_definitions(),
            begins_reply=begins_reply,
        )
        return rendered.rpartition(QUESTION)[2]


def probes_of(template: ChatTemplate) -> list[Probe]:
    """A probe for each form of messages that templates want, the most usual ones first."""
    forms = product(("", KIMI_ID), (False, True), ("", None))
    contents = ContentFormats(template, None, _SPECIAL_TOKENS)
    return [
        Probe(template, contents, content, is_text, id_form) for id_form, is_text, content in forms
    ]


def shows_tools(template: ChatTemplate) -> bool:
    """Whether a template describes tools: those of a request, or of its system message."""
    forms = TemplateForms(template, _SPECIAL_TOKENS)
    question = Message(role="user", content=QUESTION)
    try:
        rendered = forms.render([question], tools=tool_definitions())
    except MrsError:
        return False
    return NAMES[0] in rendered


def tool_definitions() -> list[dict[str, Any]]:
    """The tools of the probes."""
    properties = {key: {"type": "string", "description": "d"} for key in KEYS}
    parameters = {"type": "object", "properties": properties, "required": list(KEYS)}
    return [
        {
            "type": "function",
            "function": {"name": name, "description": "d", "parameters": parameters},
        }
        for name in NAMES
    ]
