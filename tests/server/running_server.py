"""A server in a thread of the tests, on a real socket."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai

from mrs.engine.engine import EngineStats
from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.run.request_memory import RequestMemory
from mrs.server.http.listener import bind, bind_unix, url_of
from mrs.server.log.lines import RequestLog
from mrs.server.models.slot import ModelSlot
from mrs.server.serve import Server
from mrs.server.settings import ServerSettings
from support.engine_steps import before_each_step
from support.waiting import PATIENCE_S, until

#: Without drafts, so that a step makes a token of a reply.
DEMO = RunRequest(ModelSource("demo", "safetensors"), cpu=True, max_seqs=4, speculate="off")
CHAT = "/v1/chat/completions"


def load(request: RunRequest, on_progress: Any, memory: RequestMemory | None = None) -> LoadedModel:
    return ModelLoader(request, memory).load(on_progress)


class RunningServer:
    """A server, and clients for it."""

    def __init__(
        self, server: Server, url: str, said: list[str], trusted: Path | None = None
    ) -> None:
        self.server = server
        self.url = url
        self.said = said
        self.trusted = True if trusted is None else ssl.create_default_context(cafile=trusted)
        self.http = self.new_client()

    def new_client(self, **more: Any) -> httpx.Client:
        if self.url.startswith("unix:"):
            transport = httpx.HTTPTransport(uds=self.url.removeprefix("unix:"))
            return httpx.Client(transport=transport, base_url="http://localhost", **more)
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, verify=self.trusted, **more)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def openai(self, key: str = "any") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S
        )

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S
        )

    def chat(self, **fields: Any) -> httpx.Response:
        """A chat completion; `fields` are those of the request."""
        body = {"messages": "What is a KV cache?", "max_tokens": 4, **fields}
        return self.http.post(CHAT, json={k: v for k, v in body.items() if v is not ...})

    @property
    def model(self) -> LoadedModel:
        return self.server.models.default.model

    @property
    def stats(self) -> EngineStats:
        return self.model.engine.stats

    def wait_until_idle(self) -> None:
        """Until no sequence is left, in the server or in the engine."""
        until(lambda: self.stats[:2] == (0, 0) and self.server.service.num_replies == 0)


def slow_down(step_s: float, set_attribute: Callable[[type, str, object], None] = setattr) -> None:
    """Let each step take `step_s` longer, so that a reply is not over before a test acts."""
    before_each_step(lambda: time.sleep(step_s), set_attribute)


def noting_thread(threads: list[str], original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which adds the name of the thread that calls it."""

    def note(*arguments: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return original(*arguments, **more)

    return note


@contextmanager
def running(
    settings: ServerSettings | None = None,
    load: Callable[..., LoadedModel] = load,
    *,
    wait: bool = True,
    send_buffer_bytes: int | None = None,
    slots: Sequence[ModelSlot] = (),
    find: Callable[[str], RunRequest] | None = None,
    local: Path | None = None,
    uds: Path | None = None,
    **request: Any,
) -> Iterator[RunningServer]:
    """A server of the demo model, unless `slots` are given; `request` are fields of its request.

    It listens on a port, or on the socket `uds`.
    """
    settings = settings or ServerSettings()
    said: list[str] = []
    with bind(settings.host, 0) if uds is None else bind_unix(uds) as listener:
        url = url_of(listener, is_tls=settings.tls_cert is not None)
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        server = Server(
            slots or [ModelSlot(replace(DEMO, **request))],
            settings,
            listener,
            load,
            said.append,
            RequestLog(said.append, as_json=True),
            find=find,
            local=local,
        )
        server.exit_at_once = lambda code: None  # it would end the tests, too
        thread = threading.Thread(target=server.run)
        thread.start()
        made = RunningServer(server, url, said, settings.tls_cert)
        try:
            if wait:
                until(lambda: server.models.is_started)
            yield made
        finally:
            made.http.close()
            server.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
