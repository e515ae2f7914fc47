"""Runs the server until it is stopped: loads the model, answers, and drains."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from mrs.errors import ExitCode
from mrs.events import OnProgress
from mrs.plan.memory.server_budget import least_bodies_bytes
from mrs.request import RunRequest, ServerLoad
from mrs.run.model_loader import ModelLoader
from mrs.run.request_memory import RequestMemory
from mrs.server.batches.folder import BatchFolder
from mrs.server.batches.queue import BatchQueue
from mrs.server.http.acceptor import Acceptor, most_connections
from mrs.server.http.errors import ApiError
from mrs.server.http.listener import tls_context, url_of
from mrs.server.http.protocol import TimedProtocol
from mrs.server.local_runs import LoadedRuns, LocalRuns
from mrs.server.log.lines import RequestLog
from mrs.server.memory import ServerMemory
from mrs.server.models.pool import ModelPool
from mrs.server.models.slot import ModelSlot
from mrs.server.pauses import collect, short_pauses
from mrs.server.routes.app import build_app, build_router
from mrs.server.service import Service
from mrs.server.settings import ServerSettings

if TYPE_CHECKING:
    from mrs.run.loaded_model import LoadedModel

#: Loads a model whose requests share memory with those of others.
LoadShared = Callable[[RunRequest, OnProgress, RequestMemory], "LoadedModel"]
#: How long an orderly end may take once it is to stop at once; clients have twice that to read
#: the errors of replies that are ended after the time to drain.
_LAST_SECONDS = 2.0


class Server:
    """Serves models on a bound socket; the first of `slots` is loaded at the start.

    `say` gets lines for the operator, `log` one for each request. `on_ready` is called with the
    first model once requests are answered. `find` makes requests of models that clients name on the
    fly. On the socket of the path `local`, runs of this user are answered that attach.
    """

    def __init__(
        self,
        slots: Sequence[ModelSlot],
        settings: ServerSettings,
        listener: socket.socket,
        load: LoadShared,
        say: Callable[[str], None],
        log: RequestLog,
        *,
        on_ready: Callable[[LoadedModel], object] = lambda model: None,
        find: Callable[[str], RunRequest] | None = None,
        local: Path | None = None,
    ) -> None:
        self._settings = settings
        self._local_path = local
        self._loaded_runs = LoadedRuns()
        self._listener = listener
        self._say = say
        self._log = log
        self._on_ready = on_ready
        self.memory = ServerMemory()
        folder, most_bytes = settings.batch_folder, settings.batch_folder_bytes
        self._batch_folder = None if folder is None else BatchFolder(folder, most_bytes)
        load_settings = ServerLoad(settings.max_body_bytes, settings.max_connections)
        self.memory.bodies.most_bytes = least_bodies_bytes(load_settings)

        def served(request: RunRequest) -> RunRequest:
            return replace(request, server=load_settings)

        def load_within(request: RunRequest, report: OnProgress) -> LoadedModel:
            model = load(request, report, self.memory.requests)
            if model.plan.budget is not None:
                self.memory.limit(model, model.plan.budget)
            model.prompts.prepare_grammars()  # a request would hold up all others
            self._loaded_runs.note(model, request)
            return model

        for slot in slots:
            slot.request = served(slot.request)
        self.models = ModelPool(
            slots,
            load_within,
            plan=lambda request: ModelLoader(request).plan,
            find=(lambda name: served(find(name))) if find and settings.allow_load else None,
            keep_alive_s=settings.keep_alive_s,
            max_waiting=settings.max_queue,
            timeout_s=settings.request_timeout_s,
        )
        #: Ends the process, which may have other threads, when its time is over.
        self.exit_at_once: Callable[[int], object] = os._exit
        self._batches: list[asyncio.Task[None]] = []
        self._tls = tls_context(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        self._error: BaseException | None = None
        self._signals = 0
        self._cuts_replies_off = False

    def run(self) -> None:
        """Serve until a signal. Raises the error of loading, and KeyboardInterrupt if a second
        signal ended replies."""
        with short_pauses():
            asyncio.run(self._run())
        if self._error is not None:
            raise self._error
        if self._cuts_replies_off:
            raise KeyboardInterrupt

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        # It warns of each write to a client that has just left, which is no fault of the server.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self.service = Service(self._settings, self.models, self._log, self.memory)
        self._loop.set_exception_handler(self._on_loop_error)
        if self._batch_folder is not None:
            self.service.batches = self._batch_queue(self._batch_folder)
        self._server = _Uvicorn(self._config(), self.stop, self._accept)
        local = await self._local_runs()
        loading = asyncio.ensure_future(self._load_models())
        status = asyncio.ensure_future(self.service.log_status())
        collecting = asyncio.ensure_future(collect(self._is_busy, self._num_loaded))
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            if local is not None:
                await local.close(self._settings.drain_timeout_s + 2 * _LAST_SECONDS)
            await self._close_models()
            self._leave_clients()
            tasks = (loading, status, collecting, *self._batches)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.service.close()
            if self._batch_folder is not None:
                self._batch_folder.close()

    def _batch_queue(self, folder: BatchFolder) -> BatchQueue:
        service, most_bytes = self.service, self._settings.max_body_bytes
        return BatchQueue(
            folder,
            build_router(service),
            lambda: service.spare_sequences,
            most_bytes,
            self._log.problem,
        )

    async def _local_runs(self) -> LocalRuns | None:
        if self._local_path is None:
            return None
        url = url_of(self._listener, is_tls=self._tls is not None)
        local = LocalRuns(self.service, self._loaded_runs, self._local_path, url)
        await local.start()
        return local

    def _is_busy(self) -> bool:
        """Whether a reply is made, or a body is read, which a collection would look through."""
        return self.service.num_replies > 0 or self.memory.bodies.used_bytes > 0

    def _num_loaded(self) -> int:
        return sum(slot.is_loaded for slot in self.models.slots)

    async def _close_models(self) -> None:
        try:
            await self.models.close(self._settings.drain_timeout_s + 2 * _LAST_SECONDS)
        except TimeoutError:
            self.exit_at_once(ExitCode.INTERRUPTED)  # the thread that loads cannot be stopped

    async def _load_models(self) -> None:
        def on_ready(model: LoadedModel) -> None:
            if self.service.batches is not None:
                self._batches.append(asyncio.ensure_future(self.service.batches.run()))
            self._on_ready(model)

        try:
            await self.models.start(on_ready)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._error = error
            self._stop()

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            build_app(self.service),
            http=TimedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a client could write them itself: see `build_app`
            timeout_keep_alive=30,
        )

    async def _accept(self) -> None:
        state, stall_s = self._server.server_state, self._settings.read_timeout_s
        new_protocol = partial(TimedProtocol, self._server.config, state, {}, stall_s=stall_s)
        most = most_connections(self._settings.open_connections)
        connections = cast(Collection[TimedProtocol], state.connections)
        acceptor = Acceptor(
            self._listener,
            connections,
            most,
            new_protocol,
            self._log.problem,
            self._tls,
            stall_s,
        )
        await acceptor.run()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._log.problem(context["message"] + (f": {error!r}" if error else ""))

    def stop(self) -> None:
        """Stop as after a signal. Any thread, and a handler of signals, may call this."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        self._signals += 1
        if not self.models.is_started:
            self._say("interrupted")
            self.exit_at_once(ExitCode.INTERRUPTED)  # the thread that loads cannot be stopped
        if self._signals == 1 and self._settings.drain_grace_s:
            self._leave()
        elif self._signals == 1:
            self._drain()
        else:
            self._cuts_replies_off |= self.service.num_requests > 0
            self._end_requests()
            self._server.force_exit = True
            self._loop.call_later(_LAST_SECONDS, self.exit_at_once, int(ExitCode.INTERRUPTED))

    def _leave(self) -> None:
        """Say that the server stops, and go on answering until those who ask `/ready` know it."""
        seconds = self._settings.drain_grace_s
        self._say(f"stopping in {seconds:g} s: /ready says so, and requests are still answered")
        self.models.is_leaving = True
        self._loop.call_later(seconds, self._drain)

    def _drain(self) -> None:
        """Refuse new requests, let those that run go on for a while, then end them."""
        count, seconds = self.service.num_requests, self._settings.drain_timeout_s
        if count:
            requests = "1 request is" if count == 1 else f"{count} requests are"
            self._say(f"stopping: {requests} running, for at most {seconds:g} s more")
        self._stop()
        self._loop.call_later(seconds, self._end_requests)

    def _stop(self) -> None:
        for each in self._batches:  # their lines are answered after the next start
            each.cancel()
        self.models.stop()
        self._server.should_exit = True

    def _end_requests(self) -> None:
        error = ApiError(503, "the server was stopped: try another one", code="shutting_down")
        self.service.abort_all(error)
        # Not from the start of draining: after a pause of the process both times would be over.
        self._loop.call_later(2 * _LAST_SECONDS, self._leave_clients)

    def _leave_clients(self) -> None:
        """Close the connections of clients that have not read their replies to the end."""
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, whose signals `on_signal` handles; `accept` takes its connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_signal: Callable[[], None],
        accept: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._accept = accept

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._accepting = asyncio.ensure_future(self._accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal()
