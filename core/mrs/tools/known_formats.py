"""Formats that no template tells, each with the reason."""

from __future__ import annotations

from mrs.text.harmony import CALL_ARGUMENTS, CALL_NAME
from mrs.tools.call_format import CallFormat, Hole, Parts
from mrs.tools.json_arguments import JsonArguments
from mrs.tools.keyed_arguments import KINDS, KeyedArguments, ValueForm
from mrs.tools.literals import Literals

#: For templates without tools: any form will do that is explained in the prompt.
HERMES = CallFormat(
    "hermes",
    ('<tool_call>\n{"name": "', Hole.NAME, '", "arguments": ', Hole.ARGUMENTS),
    "}\n</tool_call>",
    JsonArguments(),
    ('}\n</tool_call>\n<tool_call>\n{"name": "', Hole.NAME, '", "arguments": ', Hole.ARGUMENTS),
    is_shown=False,
)

#: Templates of gpt-oss write the channel of old calls after the recipient; models write it before.
#: The decoder turns channels into other marks, which the template does not know either.
_HARMONY = CallFormat(
    "harmony",
    ("<|channel|>commentary to=functions.", Hole.NAME,
     " <|constrain|>json<|message|>", Hole.ARGUMENTS),
    "",
    JsonArguments(),
    answer="<|channel|>final<|message|>",
    decoded=(CALL_NAME, Hole.NAME, CALL_ARGUMENTS, Hole.ARGUMENTS),
)  # fmt: skip


def _listed(name: str, begin: str, end: str) -> CallFormat:
    """A JSON list of calls."""
    rest: Parts = (Hole.NAME, '", "arguments": ', Hole.ARGUMENTS)
    return CallFormat(
        name,
        (f'{begin}[{{"name": "', *rest),
        "}]" + end,
        JsonArguments(),
        ('}, {"name": "', *rest),
        is_shown=False,
    )


_LFM2 = CallFormat(
    "lfm2",
    ("<|tool_call_start|>[", Hole.NAME, "(", Hole.ARGUMENTS),
    ")]<|tool_call_end|>",
    KeyedArguments(dict.fromkeys(KINDS, ValueForm("=", "", Literals("'"))), "", ", "),
    ("), ", Hole.NAME, "(", Hole.ARGUMENTS),
    is_shown=False,
)

#: These templates describe tools and show no call, by a mark of their descriptions.
_UNSHOWN = {
    "<|tool_list_start|>": _LFM2,
    "List of tools: [": _LFM2,
    "<|start_of_role|>available_tools": _listed("granite", "<|tool_call|>", ""),
    "<|/tool|>": _listed("phi4", "<|tool_call|>", "<|/tool_call|>"),
}

#: Kimi's newer templates have only the id of a call, whose form they do not tell.
KIMI_ID = "functions.{name}:{number}"


def harmony_format(source: str) -> CallFormat | None:
    """The format of a template with channels."""
    return _HARMONY if "<|channel|>" in source and "functions." in source else None


def unshown_format(source: str) -> CallFormat | None:
    """The format of a template that shows no calls, by a mark of its definitions."""
    return next((style for mark, style in _UNSHOWN.items() if mark in source), None)
