"""A hostile request, and what makes some of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: In a body, this stands for the id of the last stored response.
LAST_RESPONSE = "LAST-RESPONSE"
MB = 10**6


@dataclass(frozen=True)
class HostileRequest:
    """A request; with `head`, its first lines are exactly these bytes."""

    name: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: tuple[str, ...] = ("content-type: application/json",)
    head: bytes | None = None

    def sent(self, host: str, last_response: str = "") -> tuple[bytes, bytes]:
        """The bytes of the head and of the body."""
        body = self.body
        if last_response and len(body) < MB:
            body = body.replace(LAST_RESPONSE.encode(), last_response.encode())
        if self.head is not None:
            return self.head, body
        lines = (
            f"{self.method} {self.path} HTTP/1.1",
            f"host: {host}",
            "connection: close",
            f"content-length: {len(body)}",
            *self.headers,
        )
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body


#: Makes one request of a kind; the chance says with which values.
Maker = Callable[[random.Random], HostileRequest]


def asking(name: str, path: str, fields: Any) -> HostileRequest:
    """A request whose body is JSON; lone surrogates become escapes."""
    return HostileRequest(name, path, json.dumps(fields).encode())


def chat(name: str, **fields: Any) -> HostileRequest:
    """A chat completion of a short reply."""
    return asking(
        name, "/v1/chat/completions", {"messages": "What is a KV cache?", "max_tokens": 4, **fields}
    )
