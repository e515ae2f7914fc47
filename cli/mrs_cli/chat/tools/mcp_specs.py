"""Which MCP servers to use, by flags and by files in the form that many programs read."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from mrs.errors import UsageError
from mrs.process.files import read_at_most
from mrs_cli.chat.saved_chat import path_of

_MAX_CONFIG_BYTES = 2**20
#: Types of servers at an address; SSE alone is an older protocol.
_HTTP = ("http", "streamable-http", "streamableHttp")
_FIELDS = {"command", "args", "env", "cwd", "type", "url", "headers", "disabled"}
_FORM = '{"mcpServers": {"NAME": {"command": "PROGRAM", "args": […]} or {"url": "https://…"}}}'


@dataclass(frozen=True)
class McpServer:
    """A program that is started with `command` and speaks over its pipes, or a server at `url`.

    The program gets `env` besides the few variables that MCP programs always get.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class McpServers:
    """Servers with names of their own, and what of a file is ignored."""

    servers: tuple[McpServer, ...] = ()
    notes: tuple[str, ...] = ()


NO_SERVERS = McpServers()


def allowed_tools(given: Sequence[str]) -> frozenset[str]:
    """The names in `--allow-tools`."""
    return frozenset(name.strip() for each in given for name in each.split(",") if name.strip())


def read_servers(given: Sequence[str], config: str | None) -> McpServers:
    """The servers of `--mcp` and of the file of `--mcp-config`. Raises UsageError."""
    from_file = NO_SERVERS if config is None else _read_config(config)
    servers: list[McpServer] = []
    for each in (*map(_of_flag, given), *from_file.servers):
        taken = {other.name for other in servers}
        numbered = (f"{each.name}-{number}" for number in range(2, len(servers) + 3))
        name = next(name for name in (each.name, *numbered) if name not in taken)
        servers.append(replace(each, name=name))
    return McpServers(tuple(servers), from_file.notes)


def _of_flag(text: str) -> McpServer:
    """A server by its address, or by the command that starts it."""
    if re.match("https?://", text):
        return McpServer(text.split("/")[2], url=text)
    try:
        words = shlex.split(text, posix=os.name != "nt")
    except ValueError as error:
        raise UsageError("a quote is not closed", where=f"--mcp {text}") from error
    if not words:
        raise UsageError("--mcp is empty", hint='such as --mcp "python server.py", or an address')
    scripts = [PurePath(word).stem for word in words[1:] if word.endswith((".py", ".js", ".ts"))]
    return McpServer((scripts or [PurePath(words[0]).stem])[0], tuple(words))


def _read_config(name: str) -> McpServers:
    where = f"--mcp-config {name}"
    try:
        value = json.loads(read_at_most(path_of(name), _MAX_CONFIG_BYTES))
    except OSError as error:
        raise UsageError(f"{where} cannot be read", where=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON", where=str(error)) from error
    entries = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(entries, dict):
        raise UsageError(f"{where} has no mcpServers", hint=_FORM)
    servers, notes = [], []
    for each, entry in entries.items():
        if not isinstance(entry, dict):
            raise UsageError(f"the server {each} is not an object", where=where, hint=_FORM)
        if entry.get("disabled"):
            continue
        servers.append(_of_entry(each, entry, where))
        if unknown := sorted(entry.keys() - _FIELDS):
            notes.append(f"{where}: {', '.join(unknown)} of {each} is ignored")
    return McpServers(tuple(servers), tuple(notes))


def _of_entry(name: str, entry: dict[str, Any], where: str) -> McpServer:
    url, command, kind = entry.get("url"), entry.get("command"), entry.get("type")
    args, env, headers = entry.get("args", []), entry.get("env", {}), entry.get("headers", {})
    cwd = entry.get("cwd")
    texts = [*args, *env.values(), *headers.values()] if _are_lists(args, env, headers) else [None]
    is_known = kind in (None, "stdio") if url is None else kind in (None, *_HTTP)
    if not is_known:
        raise UsageError(
            f"the server {name} has the type {kind}", where=where, hint="give stdio or http"
        )
    if not all(isinstance(each, str) for each in (*texts, url or command, cwd or "")):
        raise UsageError(f"the server {name} is not complete", where=where, hint=_FORM)
    if url is not None:
        return McpServer(name, url=url, headers=headers)
    return McpServer(name, (str(command), *args), env, cwd)


def _are_lists(args: Any, *tables: Any) -> bool:
    return isinstance(args, list) and all(isinstance(each, dict) for each in tables)
