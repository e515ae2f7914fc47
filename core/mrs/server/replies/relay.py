"""Carries the engine's outputs from its thread to asyncio."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Protocol

from mrs.engine.sequence import TokenOutput

Output = TokenOutput | None


class Receiver(Protocol):
    """What takes outputs on the event loop."""

    def receive(self, output: Output) -> None: ...


class OutputRelay:
    """Wakes the event loop up once for all outputs that a step puts here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[tuple[Receiver, Output]] = []

    def put(self, receiver: Receiver, output: Output) -> None:
        """Pass `output` to `receiver` on the event loop. Any thread may call this."""
        with self._lock:
            self._waiting.append((receiver, output))
            if len(self._waiting) > 1:
                return
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            outputs, self._waiting = self._waiting, []
        for receiver, output in outputs:
            receiver.receive(output)
