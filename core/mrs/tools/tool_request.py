"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrs.errors import UsageError
from mrs.process.json_size import json_characters

#: Names in the form that OpenAI allows, and dots, which some programs use.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function: its name, and the JSON schema of its arguments.

    `definition` is what the request says of it, for the chat template. With `is_strict` a keyword
    of the schema that cannot be enforced is an error.
    """

    name: str
    parameters: Mapping[str, Any]
    definition: Mapping[str, Any]
    is_strict: bool = False


@dataclass(frozen=True)
class ToolRequest:
    """Tools that the model may call; with `is_required` it calls at least one of `callable`.

    Without `is_parallel` it calls one at most.
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    is_required: bool = False
    is_parallel: bool = True

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        return [tool.definition for tool in self.tools]


def read_tools(
    tools: Any, tool_choice: Any = None, parallel_tool_calls: bool | None = None
) -> ToolRequest | None:
    """The tools of an OpenAI request; None if there are none, or `tool_choice` is `none`.

    `tool_choice` is none, auto, required, {"type": "function", "function": {"name": …}} for one of
    the tools, or {"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}} for some of
    them, which are all in the prompt. Raises UsageError.
    """
    if tools is not None and (not isinstance(tools, Sequence) or isinstance(tools, str)):
        raise UsageError("tools is not a list", hint='give [{"type": "function", "function": {…}}]')
    read = tuple(_tool(each, f"tools[{index}]") for index, each in enumerate(tools or ()))
    if len({tool.name for tool in read}) < len(read):
        raise UsageError("two tools have the same name", hint="rename one of them")
    if tool_choice == "none":
        return None
    if not read:
        if tool_choice not in (None, "auto"):
            raise UsageError("tool_choice needs tools", hint="give tools, too")
        return None
    is_parallel = parallel_tool_calls is not False
    if tool_choice in (None, "auto", "required"):
        return ToolRequest(read, read, tool_choice == "required", is_parallel)
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "allowed_tools":
        return _allowed(read, tool_choice.get("allowed_tools"), is_parallel)
    return ToolRequest(read, _chosen(read, [tool_choice]), is_required=True, is_parallel=False)


def _allowed(tools: Sequence[Tool], given: Any, is_parallel: bool) -> ToolRequest:
    """The request whose replies call only the tools that `given` lists."""
    names = given.get("tools") if isinstance(given, Mapping) else None
    if not isinstance(names, Sequence) or given.get("mode", "auto") not in ("auto", "required"):
        raise UsageError(
            "tool_choice has no valid allowed_tools",
            hint='give {"mode": "auto" or "required", "tools": […]}',
        )
    is_required = given.get("mode") == "required"
    return ToolRequest(tuple(tools), _chosen(tools, names), is_required, is_parallel)


def _chosen(tools: Sequence[Tool], choices: Sequence[Any]) -> tuple[Tool, ...]:
    """The tools that one or more choices name. Raises UsageError if one of them names none."""
    names = [_named(choice) for choice in choices]
    if not names or not {tool.name for tool in tools}.issuperset(names):
        raise UsageError(
            "tool_choice is none of the tools",
            hint='give none, auto, required or {"type": "function", "function": {"name": …}}',
        )
    return tuple(tool for tool in tools if tool.name in names)


def _named(choice: Any) -> str | None:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _tool(given: Any, where: str) -> Tool:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise UsageError(
            f"{where} is not a function", hint='give {"type": "function", "function": {…}}'
        )
    name, parameters = function.get("name"), function.get("parameters") or _NO_PARAMETERS
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where} has no valid name", hint="give up to 64 letters, digits, _ or -")
    if not isinstance(parameters, Mapping):
        raise UsageError(f"the parameters of {where} are not an object", hint="give a JSON schema")
    definition = {"type": "function", "function": {**function, "parameters": parameters}}
    try:
        json_characters(definition)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON", hint="give objects, lists and values") from error
    if "properties" in parameters:
        parameters = {"additionalProperties": False, **parameters}
    return Tool(name, {"type": "object", **parameters}, definition, function.get("strict") is True)
