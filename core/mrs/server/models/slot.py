"""A model of the server by the name that clients use, whether it is loaded or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from mrs.events import LoadProgress
from mrs.server.replies.forecast import Forecast
from mrs.server.replies.group import ReplyGroup
from mrs.source.address import model_name

if TYPE_CHECKING:
    from mrs.engine.sequence import Sequence
    from mrs.request import RunRequest
    from mrs.run.loaded_model import LoadedModel

SlotState = Literal["unloaded", "loading", "loaded", "failed"]


class ModelSlot:
    """One model; belongs to the event loop, apart from `report`.

    names       all names that clients may use; the first one is in the replies
    users       requests that use the model now; it stays loaded until there are none
    waiting     requests that wait until it is loaded
    is_leaving  whether it is to be unloaded, so that new requests wait until it is loaded again
    error       why it could not be loaded, the last time that it was tried
    """

    def __init__(self, request: RunRequest, *names: str) -> None:
        self.request = request
        self.names = names or (model_name(request.source.model_id),)
        self.name = self.names[0]
        self.created = int(time.time())
        self.state: SlotState = "unloaded"
        self.users = 0
        self.waiting: list[asyncio.Future[None]] = []
        self.is_leaving = False
        self.error: str | None = None
        self.last_used_s = time.monotonic()
        #: In the order in which they came.
        self.groups: dict[ReplyGroup, None] = {}
        self._unused = asyncio.Event()
        self._unused.set()
        self._model: LoadedModel | None = None
        self._forecast: Forecast | None = None
        self._progress: dict[str, LoadProgress] = {}

    @property
    def adapter_names(self) -> list[str]:
        """The adapters that requests may choose."""
        return [each.name for each in self.request.adapters if not each.is_merged]

    @property
    def model(self) -> LoadedModel:
        """The loaded model, while a request uses it."""
        assert self._model is not None, f"{self.name} is not loaded"
        return self._model

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    @property
    def summary(self) -> str:
        """One line about the model; empty if it is not loaded."""
        return self._model.summary if self._model is not None else ""

    @property
    def forecast(self) -> Forecast:
        """The forecast, which begins with the plan's rates."""
        if self._forecast is None:
            self._forecast = Forecast(1 / self.model.plan.speed.decode.expected)
        return self._forecast

    @property
    def progress(self) -> float:
        """The share of the bytes that are loaded."""
        if self.is_loaded:
            return 1.0
        total_bytes = sum(each.total_bytes for each in self._progress.values())
        done_bytes = sum(each.done_bytes for each in self._progress.values())
        return done_bytes / total_bytes if total_bytes else 0.0

    def report(self, progress: LoadProgress) -> None:
        """Called by the thread that loads the model."""
        self._progress = {**self._progress, progress.device: progress}

    @property
    def sequences(self) -> Iterable[Sequence]:
        """The sequences of all replies that are not complete."""
        return (each for group in self.groups for each in group.sequences)

    def take(self) -> None:
        """Keep the model loaded until `release`."""
        self.users += 1
        self._unused.clear()

    def release(self) -> None:
        self.users -= 1
        self.last_used_s = time.monotonic()
        if not self.users:
            self._unused.set()

    async def until_unused(self) -> None:
        while self.users:
            await self._unused.wait()

    def grant(self) -> None:
        """Let all requests that wait use the model, which is loaded."""
        for future in self.waiting:
            if not future.done():
                self.take()
                future.set_result(None)
        self.waiting.clear()

    def refuse(self, error: Exception) -> None:
        """End all requests that wait."""
        for future in self.waiting:
            if not future.done():
                future.set_exception(error)
        self.waiting.clear()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While the model is loaded; an error makes it a model that failed."""
        self.state = "loading"
        try:
            yield
        except BaseException as error:
            self.state, self.error = "failed", str(error)
            raise

    def fill(self, model: LoadedModel) -> None:
        self._model, self.state, self.error = model, "loaded", None
        self.is_leaving = False
        self.last_used_s = time.monotonic()

    def empty(self) -> LoadedModel | None:
        """Take the model out, to be closed."""
        model, self._model = self._model, None
        self._forecast, self._progress = None, {}
        self.state, self.is_leaving = "unloaded", False
        return model
