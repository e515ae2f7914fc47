"""Connections to MCP servers, which an event loop in a thread of its own keeps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from mrs.errors import NotReadable, Unsupported
from mrs_cli.chat.tools.mcp_specs import McpServer
from mrs_cli.render.safe_text import one_line

if TYPE_CHECKING:
    from mcp import Client

START_SECONDS = 60.0
CALL_SECONDS = 120.0
_STOP_SECONDS = 10.0
#: The tools of one server, which all are in the prompt.
MAX_TOOLS = 128
_MAX_PAGES = 100


class CallFailed(Exception):
    """A call had no result; the message says why, in one line."""


@dataclass(frozen=True)
class McpTool:
    """A tool of a server, with the JSON schema of its arguments."""

    server: McpServer
    name: str
    description: str
    parameters: dict[str, Any]


class McpConnections:
    """Open connections to servers; a context manager. Its methods belong to one thread.

    A server's own messages go to standard error with `shows_errors`, or nowhere.
    """

    def __init__(self, servers: Sequence[McpServer], *, shows_errors: bool) -> None:
        if find_spec("mcp") is None:
            raise Unsupported("--mcp needs the package mcp", hint="pip install 'mcp>=2,<3'")
        self._servers = servers
        self._shows_errors = shows_errors
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._clients: dict[str, Client] = {}
        self._ready: dict[str, Future[list[McpTool]]] = {each.name: Future() for each in servers}
        self._thread = threading.Thread(target=self._run, name="mrs-mcp", daemon=True)

    def __enter__(self) -> Self:
        """Starts to connect, without waiting."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_SECONDS)

    def tools(self) -> list[McpTool]:
        """The tools of all servers, once each has told its own. Raises NotReadable."""
        return [tool for server in self._servers for tool in self._tools_of(server)]

    def _tools_of(self, server: McpServer) -> list[McpTool]:
        hint = "-v shows what it writes" if server.command else "is the address right?"
        what = f"the MCP server {server.name} cannot be used"
        try:
            return self._ready[server.name].result(START_SECONDS)
        except LateError:
            reason = f"no answer in {START_SECONDS:g} s"
        except Exception as error:  # noqa: BLE001 - a server may fail in any way
            reason = _reason(error)
        raise NotReadable(what, where=reason, hint=hint)

    def call(self, tool: McpTool, arguments: dict[str, Any]) -> str:
        """The result as text; one that says that it is an error begins with `Error:`.

        Raises CallFailed for a server that is gone or too late. Ctrl-C abandons the call.
        """
        client = self._clients.get(tool.server.name)
        if client is None or not self._thread.is_alive():
            raise CallFailed(f"the MCP server {tool.server.name} has ended")
        called = asyncio.run_coroutine_threadsafe(
            client.call_tool(tool.name, arguments, read_timeout_seconds=CALL_SECONDS), self._loop
        )
        try:
            return _text(called.result(CALL_SECONDS + 1))
        except LateError as error:
            raise CallFailed(f"{tool.name} gave no result in {CALL_SECONDS:g} s") from error
        except Exception as error:
            what = f"{tool.name} of the MCP server {tool.server.name} failed"
            raise CallFailed(f"{what}: {_reason(error)}") from error
        finally:
            called.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve_all())
        finally:
            self._loop.close()

    async def _serve_all(self) -> None:
        await asyncio.gather(*map(self._serve, self._servers))

    async def _serve(self, server: McpServer) -> None:
        """Keeps the connection to a server until it ends, or all shall."""
        ready = self._ready[server.name]
        try:
            async with AsyncExitStack() as stack:
                client = await self._connected(server, stack)
                tools = await _listed(client, server)
                self._clients[server.name] = client
                ready.set_result(tools)
                await self._stopping.wait()
        except BaseException as error:  # noqa: BLE001 - told where it is waited for
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._clients.pop(server.name, None)

    async def _connected(self, server: McpServer, stack: AsyncExitStack) -> Client:
        import logging

        from mcp import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # failures are told in one line
        if server.url:
            client = None
            if server.headers:
                from httpx2 import AsyncClient, Timeout

                client = await stack.enter_async_context(
                    AsyncClient(headers=dict(server.headers), timeout=Timeout(CALL_SECONDS))
                )
            transport: Any = streamable_http_client(server.url, http_client=client)
        else:
            command, *args = server.command
            parameters = StdioServerParameters(
                command=command, args=args, env=dict(server.env), cwd=server.cwd
            )
            transport = stdio_client(parameters, errlog=self._error_file(stack))
        return await stack.enter_async_context(
            Client(transport, read_timeout_seconds=START_SECONDS, mode="legacy")
        )

    def _error_file(self, stack: AsyncExitStack) -> TextIO:
        import os
        import sys

        if self._shows_errors:
            return sys.__stderr__ or sys.stderr
        return stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))


async def _listed(client: Client, server: McpServer) -> list[McpTool]:
    tools: list[McpTool] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [
            McpTool(server, each.name, each.description or "", each.input_schema)
            for each in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None or len(tools) > MAX_TOOLS:
            break
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"it has more than {MAX_TOOLS} tools")
    return tools


def _text(result: Any) -> str:
    """The texts of a result; other contents are named."""
    parts = [
        each.text if each.type == "text" else f"[{each.type}: not shown]" for each in result.content
    ]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts) or "(no content)"
    return f"Error: {text}" if result.is_error else text


def _reason(error: BaseException) -> str:
    """The innermost reason of an error, which may be a group."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    text = getattr(error, "strerror", None) or str(error)
    return one_line(text)[:300] or type(error).__name__
