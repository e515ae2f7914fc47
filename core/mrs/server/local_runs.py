"""Answers runs of the same user on this machine, which attach instead of loading the model."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from mrs.attach.protocol import (
    LENGTH,
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
    length_of,
)
from mrs.attach.same_run import RunIdentity, difference, run_identity
from mrs.events import Event, Finished, TextDelta, ToolCallDelta
from mrs.process.turns import Client
from mrs.server.background import SHORT_BYTES
from mrs.server.http.errors import ApiError
from mrs.server.log.record import RequestRecord
from mrs.server.models.slot import ModelSlot
from mrs.server.replies.group import ReplyGroup
from mrs.server.service import Service

if TYPE_CHECKING:
    from mrs.engine.loop import Outbox
    from mrs.engine.prompt import Prompt
    from mrs.engine.reply_events import ReplyEvents
    from mrs.request import RunRequest
    from mrs.run.loaded_model import LoadedModel

_logger = logging.getLogger(__name__)

#: Calls at once.
_MOST_CALLS = 256
#: How long a run may take to send its call.
_STALL_SECONDS = 60.0
#: What a call has beside its messages.
_CALL_BYTES = 1 << 20


class LoadedRuns:
    """The identities of the models that are loaded; any thread may note one."""

    def __init__(self) -> None:
        self._identities = WeakKeyDictionary[object, RunIdentity]()

    def note(self, model: LoadedModel, request: RunRequest) -> None:
        """Nobody attaches to a model whose files have gone meanwhile."""
        with suppress(Exception):
            if (identity := run_identity(request)) is not None:
                self._identities[model] = identity

    def reason_against(self, slot: ModelSlot, wanted: RunIdentity) -> str:
        """Why the model's replies are not those of a run; empty if they are."""
        if not slot.is_loaded or slot.is_leaving:
            return "it is not loaded now"
        loaded = self._identities.get(slot.model)
        if loaded is None:
            return "its model's files are not known"
        plan = slot.model.plan
        if len({plan.devices[index].kind for index in plan.weight_bytes()}) > 1:
            return "its layers are on devices of several kinds"
        return difference(wanted, loaded, slot.model.context_tokens)


class LocalRuns:
    """A socket of the file system on which a server answers runs whose replies would be the same.

    Only this user can open its folder, and the system is asked who is at the other end. Belongs to
    the event loop. `url` is what people call the server.
    """

    def __init__(self, service: Service, loaded: LoadedRuns, path: Path, url: str) -> None:
        self._service = service
        self._loaded = loaded
        self._path = path
        self._url = url
        self._most_call_bytes = service.settings.max_body_bytes + _CALL_BYTES
        self._num_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._numbers = count()

    async def start(self) -> None:
        """Take calls, if the system has such sockets and the path can be one."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        try:
            await asyncio.start_unix_server(self._on_connection, self._path)
            self._path.chmod(0o600)
        except (OSError, AttributeError) as error:  # Windows has no such function
            _logger.info("no run can attach to this server: %s", error)

    async def close(self, timeout_s: float) -> None:
        """Take no more calls, and wait for those that are being answered, at most so long."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._num_calls += 1
        self._idle.clear()
        call = _RunCall(writer, next(self._numbers))
        try:
            if _is_same_user(writer.get_extra_info("socket")) and self._num_calls <= _MOST_CALLS:
                await self._answer(call, reader)
        except Exception as error:  # noqa: BLE001 - the run shows it
            call.say(_failed(error))
        finally:
            call.end()
            with suppress(OSError):
                await writer.wait_closed()
            self._num_calls -= 1
            if not self._num_calls:
                self._idle.set()

    async def _answer(self, call: _RunCall, reader: asyncio.StreamReader) -> None:
        try:
            frame = await asyncio.wait_for(self._read(call, reader), _STALL_SECONDS)
        except (TimeoutError, asyncio.IncompleteReadError):
            return
        slot, reason = None, "it is starting"
        if self._service.models.is_started:
            for each in self._service.models.slots:
                slot, reason = each, self._loaded.reason_against(each, frame.identity)
                if not reason:
                    break
        if slot is None or reason:
            call.say(Refused(reason))
        elif frame.what == "open":
            call.say(self._opened(slot))
        else:
            leaving = asyncio.ensure_future(reader.read(1))
            answering = asyncio.ensure_future(self._answer_from(call, slot, frame))
            try:
                await asyncio.wait({leaving, answering}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and not call.leave():
                    answering.cancel()
                with suppress(asyncio.CancelledError):
                    await answering
            finally:
                leaving.cancel()
                answering.cancel()

    def _opened(self, slot: ModelSlot) -> Opened | Refused:
        model = slot.model
        if model.engine.stats.running >= slot.request.max_seqs:
            return Refused("it has no free sequence")
        if model.prompts.speech is not None:
            return Refused("it makes transcripts for requests alone")
        return Opened(
            self._url,
            os.getpid(),
            model.summary,
            model.has_chat_template,
            model.context_tokens,
            dict(model.suggested_sampling),
            self._most_call_bytes,
            needs_key=bool(self._service.settings.api_keys),
        )

    async def _read(self, call: _RunCall, reader: asyncio.StreamReader) -> Call:
        head = await reader.readexactly(LENGTH.size)
        data = await reader.readexactly(length_of(head, self._most_call_bytes))
        call.is_long = len(data) > SHORT_BYTES
        return msgspec.msgpack.decode(data, type=Call)

    async def _answer_from(self, call: _RunCall, slot: ModelSlot, frame: Call) -> None:
        service = self._service
        model = await service.use(call, slot)
        if frame.what in ("num_images", "prompt_tokens"):
            call.say(Count(await service.in_thread(call, lambda: _count(model, frame))))
            return
        prompt = await service.in_thread(call, lambda: _prompt(model, frame))

        def start(outbox: Outbox) -> ReplyEvents:
            return model.start(prompt, frame.sampling, outbox, client=call.sender)

        call.group = await service.start(call, slot, [start])
        call.group.keep()  # a run reads some replies later: those of its next prompts
        call.say(Started())
        note = service.on_finish(call, slot)
        try:
            async for _, event in call.group:
                call.tell(event)
                if isinstance(event, Finished):
                    note(call.group.events_of(0), event)
                    call.record.status = 200
        except _HasLeft:
            events = call.group.events_of(0)
            events.queue.clear()
            events.finish("cancelled")
            for each in events.queue:
                call.tell(each)
        finally:
            service.ended(call.record, "run")


class _HasLeft(Exception):
    """The run needs no more of its reply."""


class _RunCall:
    """One call: who asks, as `Service` wants to know it, and where the answers go."""

    left_s: float | None = None

    def __init__(self, writer: asyncio.StreamWriter, number: int) -> None:
        self._writer = writer
        self.client: Client = (b"", "this user", number)
        self.is_long = False
        self.record = RequestRecord(f"run-{number}", "RUN", "run")
        self.cleanup: list[Callable[[], None]] = []
        self.group: ReplyGroup | None = None

    @property
    def sender(self) -> Client:
        return self.client[:-1]

    def say(self, answer: Answer) -> None:
        """Not awaited: the reply of a run that reads slowly is bounded by its context."""
        if not self._writer.is_closing():
            self._writer.write(framed(answer))

    def tell(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.say(Piece(event.text))
        elif isinstance(event, ToolCallDelta):
            self.say(CallPiece(event))
        elif isinstance(event, Finished):
            self.say(End(event.reason, event.usage, event.stop_string))

    def leave(self) -> bool:
        """End the reply, after what it has so far; whether there is one."""
        if self.group is not None:
            self.group.fail(_HasLeft())
        return self.group is not None

    def end(self) -> None:
        for each in reversed(self.cleanup):
            each()
        self._writer.close()


def _count(model: LoadedModel, frame: Call) -> int:
    if frame.what == "num_images":
        return model.num_images(frame.messages)
    return model.prompt_tokens(frame.messages, tools=frame.tools)


def _prompt(model: LoadedModel, frame: Call) -> Prompt:
    if frame.what == "chat":
        return model.prompts.chat(frame.messages, frame.sampling, tools=frame.tools)
    return model.prompts.completion(frame.prompt, frame.sampling)


def _failed(error: Exception) -> Failed:
    return Failed(1, error.message) if isinstance(error, ApiError) else Failed.of(error)


def _is_same_user(connection: socket.socket) -> bool:
    """Whether this user's process is at the other end; Linux alone tells."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, 12))
    return bool(user == os.getuid())
