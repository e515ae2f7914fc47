"""Short conversations whose rendering shows which form of messages a template wants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mrs.request import Message, ToolCallMessage

#: Names by which a template may read the thought of a message. Its variables match, too: a message
#: that has them as well changes nothing.
_THOUGHT_NAMES = re.compile(r"\w*(?:reason|think|thought)\w*")
_TOOLS, _KEY, _VALUE = ("first_probe", "second_probe"), "probed_key", "probed value"

TEXT, THOUGHT, LATER = "probed text", "probed thought", "later probe"
ASKED = Message(role="user", content="probe")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _TOOLS[0],
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


def called(content: str | None, count: int = 1) -> Message:
    """A message of the assistant with calls."""
    calls = [
        ToolCallMessage(id=f"call_of_{name}", name=name, arguments=f'{{"{_KEY}": "{_VALUE}"}}')
        for name in _TOOLS[:count]
    ]
    return Message(role="assistant", content=content, tool_calls=calls)


def with_results(message: Message) -> list[Message]:
    """A message with calls, and the result of each."""
    return [
        message,
        *(
            Message(role="tool", content=LATER, tool_call_id=call["id"], name=call["name"])
            for call in message.get("tool_calls", ())
        ),
    ]


def shows_calls(rendered: str, count: int) -> bool:
    """Whether a prompt has the names and arguments of `count` calls, and no object of Python."""
    return (
        all(rendered.count(name) >= 1 for name in _TOOLS[:count])
        and rendered.count(_VALUE) >= count
        and f"'{_KEY}':" not in rendered
    )


def shows_tool(rendered: str) -> bool:
    """Whether the definition of TOOL is in a prompt, and not as an object of Python."""
    return _TOOLS[0] in rendered and "'name':" not in rendered


def named_thoughts(source: str) -> dict[str, str]:
    """A different thought under each name by which the template may read one."""
    return {name: f"{THOUGHT} {name}." for name in set(_THOUGHT_NAMES.findall(source))}


def first_shown(rendered: str, texts: dict[str, str]) -> str | None:
    """The name of the text that is first in a prompt, if any is there."""
    places = {name: rendered.find(text) for name, text in texts.items()}
    return min((name for name in places if places[name] >= 0), key=places.__getitem__, default=None)


def in_order(rendered: str, texts: Sequence[str]) -> bool:
    """Whether the texts are in a prompt, one after the other."""
    return re.search(".*".join(map(re.escape, texts)), rendered, re.DOTALL) is not None
