"""Runs the server until it is stopped: loads the model, answers, and drains."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from mrs.errors import ExitCode
from mrs.request import RunRequest
from mrs.server.http.errors import ApiError
from mrs.server.http.protocol import timed_protocol
from mrs.server.log.lines import RequestLog
from mrs.server.models.slot import ModelSlot
from mrs.server.routes.app import build_app
from mrs.server.service import Load, Service
from mrs.server.settings import ServerSettings

#: How long an orderly end may take once it is to stop at once.
_LAST_SECONDS = 2.0


class Server:
    """Serves one model on a bound socket.

    `say` gets lines for the operator, `log` one for each request.
    """

    def __init__(
        self,
        request: RunRequest,
        settings: ServerSettings,
        listener: socket.socket,
        load: Load,
        say: Callable[[str], None],
        log: RequestLog,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._load = load
        self._say = say
        self._log = log
        self.slot = ModelSlot(request)
        self._error: BaseException | None = None
        self._signals = 0

    def run(self) -> None:
        """Serve until a signal. Raises the error of loading, and KeyboardInterrupt during it."""
        try:
            asyncio.run(self._run())
        finally:
            model = self.slot.empty()
            if model is not None:
                model.close()
        if self._error is not None:
            raise self._error

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.service = Service(self._settings, self.slot, self._log, self._load)
        self._server = _Uvicorn(self._config(), self.stop)
        threading.Thread(target=self._load_model, name="mrs-load", daemon=True).start()
        status = asyncio.ensure_future(self.service.log_status())
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            status.cancel()
            self.service.close()

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        return uvicorn.Config(
            build_app(self.service),
            http=timed_protocol(settings.read_timeout_s),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            # After the streams got their errors; only for clients that read slowly.
            timeout_graceful_shutdown=int(settings.drain_timeout_s + 2 * _LAST_SECONDS),
        )

    def _load_model(self) -> None:
        """In a thread of its own, so that the server answers meanwhile."""
        try:
            model = self._load(self.slot.request, self.slot.report)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._error = error
            self._loop.call_soon_threadsafe(self._stop)
        else:
            self._loop.call_soon_threadsafe(self.slot.fill, model)

    def stop(self) -> None:
        """Stop as after a signal. Any thread, and a handler of signals, may call this."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        self._signals += 1
        if self.slot.state == "loading":
            self._say("interrupted")
            os._exit(ExitCode.INTERRUPTED)  # the thread that loads cannot be stopped
        if self._signals == 1:
            self._drain()
        else:
            self._end_requests()
            self._server.force_exit = True
            self._loop.call_later(_LAST_SECONDS, os._exit, int(ExitCode.INTERRUPTED))

    def _drain(self) -> None:
        """Refuse new requests, let those that run go on for a while, then end them."""
        count, seconds = self.service.num_requests, self._settings.drain_timeout_s
        if count:
            requests = "1 request is" if count == 1 else f"{count} requests are"
            self._say(f"stopping: {requests} running, for at most {seconds:g} s more")
        self._stop()
        self._loop.call_later(seconds, self._end_requests)

    def _stop(self) -> None:
        self.slot.state = "stopping"
        self._server.should_exit = True

    def _end_requests(self) -> None:
        error = ApiError(503, "the server was stopped: try another one", code="shutting_down")
        self.service.abort_all(error)


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, whose signals `on_signal` handles."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal()
