"""An MCP server with a few tools, at the port that is given, or else by pipes."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
def weather(city: str) -> str:
    """The weather in a city now."""
    return f"{city}: 21 degrees, sunny"


@server.tool()
def variables() -> str:
    """The names of the variables that this server has."""
    return " ".join(sorted(os.environ))


@server.tool()
def long() -> str:
    """Much text."""
    return "x" * 100_000


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such thing")


@server.tool()
def hang() -> str:
    """Takes too long."""
    time.sleep(60)
    return "late"


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]), host="127.0.0.1")
    server.run("stdio")
