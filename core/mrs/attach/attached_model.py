"""A model that a server of this user has loaded, for a run that asks it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from mrs.attach.protocol import (
    Answer,
    Call,
    CallPiece,
    Count,
    End,
    Failed,
    Opened,
    Piece,
    Refused,
    Started,
    framed,
    receive,
)
from mrs.attach.same_run import RunIdentity
from mrs.errors import ExitCode, MrsError, UsageError
from mrs.events import DeviceMemoryUsage, Event, Finished, TextDelta
from mrs.request import AdapterRequest, Message, Sampling
from mrs.tools.tool_request import ToolRequest
from mrs.units import human_bytes

#: How long a server may take to say whether it answers.
_OPEN_SECONDS = 3.0
#: What to do about a server that is gone.
_GONE_HINT = "run it again; in a chat, \\model ID and \\retry go on without it"
#: How long it may take to end a reply that Ctrl-C stops.
_STOP_SECONDS = 2.0


class ServerGone(MrsError):
    """The server ended, or said what nobody understands, before an answer was complete."""

    exit_code = ExitCode.PEER_FAILED


class _ServerError(MrsError):
    """An error that the server had while it answered."""

    @classmethod
    def of(cls, failed: Failed) -> _ServerError:
        error = cls(failed.what, where=failed.where, hint=failed.hint)
        error.exit_code = ExitCode(failed.exit_code)
        return error


class AttachedModel:
    """A model in a server's process, with what prompts and chats need of a loaded model."""

    #: A run that names adapters loads its model, and the plan is the server's.
    adapters: Sequence[AdapterRequest] = ()
    plan = None

    def __init__(self, path: Path, identity: RunIdentity, opened: Opened) -> None:
        self._path = path
        self._identity = identity
        self.url = opened.url
        self.pid = opened.pid
        self.needs_key = opened.needs_key
        self._most_call_bytes = opened.most_call_bytes
        self.summary = opened.summary
        self.has_chat_template = opened.has_chat_template
        self.context_tokens = opened.context_tokens
        self.suggested_sampling = opened.suggested_sampling

    def require_replies(self) -> None:
        """Servers answer runs only with models that make replies."""

    def memory(self) -> Sequence[DeviceMemoryUsage]:
        """This process uses no memory for the model."""
        return ()

    def num_images(self, messages: Sequence[Message]) -> int:
        """The images of a conversation, those of its videos included. Raises MrsError."""
        return self._count("num_images", messages=tuple(messages))

    def prompt_tokens(
        self, messages: Sequence[Message], *, tools: ToolRequest | None = None
    ) -> int:
        """The tokens of a conversation, with the tools that it describes. Raises MrsError."""
        return self._count("prompt_tokens", messages=tuple(messages), tools=tools)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        tools: ToolRequest | None = None,
    ) -> Iterator[Event]:
        return self._reply("chat", messages=tuple(messages), sampling=sampling, tools=tools)

    def stream_completion(self, prompt: str, sampling: Sampling) -> Iterator[Event]:
        return self._reply("completion", prompt=prompt, sampling=sampling)

    def close(self) -> None:
        """The server keeps the model."""

    def _count(self, what: Literal["num_images", "prompt_tokens"], **fields: Any) -> int:
        with self._asked(what, **fields) as connection:
            answer = self._next(connection)
        assert isinstance(answer, Count)
        return answer.value

    def _reply(self, what: Literal["chat", "completion"], **fields: Any) -> Iterator[Event]:
        connection = self._asked(what, **fields)
        try:
            answer = self._next(connection)
        except BaseException:
            connection.close()
            raise
        assert isinstance(answer, Started)
        return self._events(connection)

    def _events(self, connection: socket.socket) -> Iterator[Event]:
        """A KeyboardInterrupt ends the reply as one of this process: with what it cost so far."""
        with connection:
            while True:
                try:
                    answer = self._next(connection)
                except KeyboardInterrupt:
                    connection.settimeout(_STOP_SECONDS)
                    connection.shutdown(socket.SHUT_WR)
                    continue
                if isinstance(answer, Piece):
                    yield TextDelta(answer.text)
                elif isinstance(answer, CallPiece):
                    yield answer.part
                elif isinstance(answer, End):
                    yield Finished(answer.reason, answer.usage, answer.stop_string)
                    return

    def _asked(self, what: Any, **fields: Any) -> socket.socket:
        frame = framed(Call(what, self._identity, **fields))
        if len(frame) > self._most_call_bytes:
            raise UsageError(
                f"the prompt has {human_bytes(len(frame))}, more than the server takes",
                hint="--attach never loads the model here; --max-body of the server raises it",
            )
        try:
            return _connected(self._path, frame)
        except OSError as error:
            raise self._gone() from error

    def _next(self, connection: socket.socket) -> Answer:
        """The next answer. Raises the server's error, and ServerGone."""
        try:
            answer = receive(connection)
        except (OSError, ValueError) as error:
            raise self._gone() from error
        if answer is None:
            raise self._gone()
        if isinstance(answer, Failed):
            raise _ServerError.of(answer)
        if isinstance(answer, Refused):
            raise ServerGone(f"the server stopped answering: {answer.reason}", hint=_GONE_HINT)
        return answer

    def _gone(self) -> ServerGone:
        return ServerGone(
            "the server ended before the reply was complete",
            where=f"pid {self.pid}",
            hint=_GONE_HINT,
        )


def attach(path: Path, identity: RunIdentity) -> AttachedModel | str:
    """The model of the server whose socket has this path, or why it does not answer."""
    try:
        with _connected(path, framed(Call("open", identity)), _OPEN_SECONDS) as connection:
            answer = receive(connection)
    except (OSError, ValueError) as error:
        return f"it cannot be reached ({error})"
    if isinstance(answer, Opened):
        return AttachedModel(path, identity, answer)
    return answer.reason if isinstance(answer, Refused) else "it does not answer"


def _connected(path: Path, frame: bytes, timeout_s: float | None = None) -> socket.socket:
    """A connection on which `frame` was sent. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(frame)
    except BaseException:
        connection.close()
        raise
    return connection
