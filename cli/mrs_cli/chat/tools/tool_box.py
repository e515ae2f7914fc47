"""The tools that a model may call in a chat, once the person has agreed to the call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from mrs.errors import UsageError
from mrs.request import ToolCallMessage
from mrs.tools.tool_request import ToolRequest, read_tools
from mrs_cli.chat.tools.mcp_connections import CallFailed, McpConnections, McpTool
from mrs_cli.render.safe_text import one_line

#: What `--allow-tools` calls all tools.
ALL = "all"
#: A result has at most so many characters, and no more than the context has tokens.
MAX_RESULT_CHARACTERS = 2**16

Answer = Literal["yes", "no", "always"]


class ToolBox:
    """`request` describes the tools to the model.

    A call is made if its tool is in `allowed`, or `ask` says so; without `ask` nobody is there.
    `note` tells the person of each call. `context_tokens` tells the context of the model that runs.
    """

    def __init__(
        self,
        connections: McpConnections,
        allowed: Collection[str],
        *,
        ask: Callable[[str], Answer] | None,
        note: Callable[[str], None],
        context_tokens: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._tools = _by_name(connections.tools())
        self._allowed = set(self._tools) if ALL in allowed else set(allowed)
        if unknown := sorted(self._allowed - self._tools.keys()):
            names = ", ".join(self._tools) or "none"
            raise UsageError(
                f"--allow-tools {unknown[0]}: there is no such tool", hint=f"there are {names}"
            )
        self._ask = ask
        self._note = note
        self._context_tokens = context_tokens
        self.request: ToolRequest | None = read_tools(
            [_definition(name, tool) for name, tool in self._tools.items()]
        )

    def described(self) -> str:
        """A line for each tool."""
        if not self._tools:
            return "the MCP servers have no tools"
        width = max(map(len, self._tools))
        return "\n".join(
            f"{name:<{width}}  {'allowed' if name in self._allowed else 'asks   '}  "
            f"{one_line(tool.description)[:100]}".rstrip()
            for name, tool in self._tools.items()
        )

    def run(self, call: ToolCallMessage) -> str:
        """The result of a call, for the model: it also hears why there is none."""
        name, tool = call["name"], self._tools.get(call["name"])
        try:
            arguments = json.loads(call["arguments"] or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if tool is None or not isinstance(arguments, dict):
            what = f"there is no tool {name}"
            if tool is not None:
                what = f"{name} is not called: its arguments are no JSON object"
            self._note(what)
            return f"Error: {what}"
        shown = one_line(f"{name} {json.dumps(arguments, ensure_ascii=False)}")
        if not self._agreed(name, shown):
            return "Error: the user did not allow this call."
        try:
            result = self._connections.call(tool, arguments)
        except CallFailed as error:
            self._note(str(error))
            return f"Error: {error}"
        most = min(MAX_RESULT_CHARACTERS, self._context_tokens())
        if len(result) <= most:
            return result
        rest = len(result) - most
        self._note(f"{name}: the result is cut, {rest:,} characters are left out")
        return f"{result[:most]}\n(cut: {rest:,} characters are left out)"

    def tell_cut(self, call: ToolCallMessage) -> None:
        """Tells the person of a call that the end of the reply has cut off."""
        self._note(f"the reply ended before its call of {call['name']} was complete")

    def _agreed(self, name: str, shown: str) -> bool:
        if name in self._allowed:
            self._note(f"calling {shown}")
            return True
        if self._ask is None:
            self._note(f"{shown} is not called: --allow-tools {name} allows it")
            return False
        answer = self._ask(f"Call {shown}?")
        if answer == "always":
            self._allowed.add(name)
        return answer != "no"


def _by_name(tools: Sequence[McpTool]) -> dict[str, McpTool]:
    """The tools by the names for the model; a name that is taken gets that of its server, too."""
    named: dict[str, McpTool] = {}
    for tool in tools:
        name = re.sub("[^A-Za-z0-9_.-]", "_", tool.name)[:64]
        if name in named:
            name = re.sub("[^A-Za-z0-9_.-]", "_", f"{tool.server.name}.{tool.name}")[:64]
        if name in named:
            raise UsageError(
                f"two tools have the name {name}", where=tool.server.name, hint="leave one out"
            )
        named[name] = tool
    return named


def _definition(name: str, tool: McpTool) -> dict[str, Any]:
    function = {"name": name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
