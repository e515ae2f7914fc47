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
from mrs.text.template import ChatTemplate
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


class Underivable(Exception):
    """The format cannot be derived; the message says why."""


@dataclass(frozen=True)
class Probe:
    """Renders calls whose message has this `content` and whose arguments are text or an object.

    Their ids are in the form `id_form`, if there is one.
    """

    template: ChatTemplate
    content: str | None = ""
    has_text_arguments: bool = False
    id_form: str = ""

    def prompt(self) -> str:
        """What follows the question up to the start of a reply."""
        return self._rendered([], begins_reply=True)

    def answer(self) -> str:
        """What follows the question if the reply is a text."""
        return self._rendered([{"role": "assistant", "content": ANSWER}])

    def calls(self, *given: Given) -> str:
        """What follows the question if the reply calls tools with these arguments."""
        calls = [
            {
                "id": self.id_form.format(name=name, number=number) or call_id,
                "type": "function",
                "function": {"name": name, "arguments": self._arguments(arguments)},
            }
            for number, (call_id, name, arguments) in enumerate(zip(IDS, NAMES, given, strict=False))
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

    def _rendered(
        self, replies: Sequence[Mapping[str, Any]], *, begins_reply: bool = False
    ) -> str:
        rendered = self.template.render(
            [{"role": "user", "content": QUESTION}, *replies],
            special_tokens=_SPECIAL_TOKENS,
            tools=tool_definitions(),
            begins_reply=begins_reply,
        )
        return rendered.rpartition(QUESTION)[2]


def probes(template: ChatTemplate) -> list[Probe]:
    """A probe for each form of messages that templates want, the most usual ones first."""
    forms = product(("", KIMI_ID), (False, True), ("", None))
    return [Probe(template, content, is_text, id_form) for id_form, is_text, content in forms]


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
