"""What a run and a server say to each other: frames of MessagePack behind their length.

A connection is for one call. The run sends it and then nothing; the server sends answers until one
that ends it. A run that closes its side has no more need of the reply.
"""

from __future__ import annotations

import socket
import struct
from typing import Literal

import msgspec

from mrs.attach.same_run import RunIdentity
from mrs.errors import MrsError
from mrs.events import FinishReason, ReplyUsage, ToolCallDelta
from mrs.request import Message, Sampling
from mrs.tools.tool_request import ToolRequest

LENGTH = struct.Struct(">I")
#: The longest answer: a piece of text, or a message of an error.
MOST_ANSWER_BYTES = 1 << 20


class Call(msgspec.Struct, frozen=True):
    """`open` asks about the model; others want a reply, or count images or tokens of messages."""

    what: Literal["open", "chat", "completion", "num_images", "prompt_tokens"]
    identity: RunIdentity
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    sampling: Sampling = Sampling()
    tools: ToolRequest | None = None


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The server does not answer for this run."""

    reason: str


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The model that answers, the largest call, and whether requests over HTTP need a key."""

    url: str
    pid: int
    summary: str
    has_chat_template: bool
    context_tokens: int
    suggested_sampling: dict[str, float]
    most_call_bytes: int
    needs_key: bool


class Count(msgspec.Struct, frozen=True, tag=True):
    value: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """The prompt was read; the reply follows."""


class Piece(msgspec.Struct, frozen=True, tag=True):
    text: str


class CallPiece(msgspec.Struct, frozen=True, tag=True):
    """A part of a call of a tool."""

    part: ToolCallDelta


class End(msgspec.Struct, frozen=True, tag=True):
    reason: FinishReason
    usage: ReplyUsage
    stop_string: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A MrsError of the server."""

    exit_code: int
    what: str
    where: str = ""
    hint: str = ""

    @classmethod
    def of(cls, error: Exception) -> Failed:
        if isinstance(error, MrsError):
            return cls(int(error.exit_code), error.what, error.where, error.hint)
        return cls(1, f"internal error of the server: {type(error).__name__}: {error}")


Answer = Refused | Opened | Count | Started | Piece | CallPiece | End | Failed


def framed(frame: msgspec.Struct) -> bytes:
    """A frame as it is sent."""
    data = msgspec.msgpack.encode(frame)
    return LENGTH.pack(len(data)) + data


def receive(connection: socket.socket) -> Answer | None:
    """The next answer; None at the end. Raises OSError and ValueError."""
    head = _exactly(connection, LENGTH.size)
    data = _exactly(connection, length_of(head, MOST_ANSWER_BYTES)) if head else b""
    return msgspec.msgpack.decode(data, type=Answer) if data else None


def length_of(head: bytes, most_bytes: int) -> int:
    """The length of the frame that follows. Raises ValueError if that is more than `most_bytes`."""
    (length,) = LENGTH.unpack(head)
    if length > most_bytes:
        raise ValueError(f"a frame has {length} bytes, more than {most_bytes}")
    return int(length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; none if the other side ends before."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            return b""
        data += piece
    return bytes(data)
