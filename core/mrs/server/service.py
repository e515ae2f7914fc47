"""What all routes share: the model, and the way of replies from the engine to asyncio."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from mrs.engine.engine import EngineStats
from mrs.engine.loop import Outbox
from mrs.engine.reply_events import ReplyEvents
from mrs.errors import MrsError
from mrs.events import Finished, OnProgress
from mrs.request import RunRequest
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.log.lines import STATUS_SECONDS, RequestLog
from mrs.server.log.metrics import Metrics
from mrs.server.log.record import ReplyRecord, RequestRecord
from mrs.server.models.slot import ModelSlot
from mrs.server.replies.forecast import Forecast
from mrs.server.replies.group import ReplyGroup
from mrs.server.replies.relay import OutputRelay
from mrs.server.settings import ServerSettings

if TYPE_CHECKING:
    from mrs.loaded_model import LoadedModel

Result = TypeVar("Result")
Start = Callable[[Outbox], ReplyEvents]
Load = Callable[[RunRequest, OnProgress], "LoadedModel"]

#: Threads that render templates, tokenize and decode images.
_THREADS = 4
#: How often an exchange of the model looks whether the last requests have ended.
_DRAIN_SECONDS = 0.05


class Service:
    """Made on the event loop, which all of its methods have to be called on."""

    def __init__(
        self, settings: ServerSettings, slot: ModelSlot, log: RequestLog, load: Load
    ) -> None:
        self.settings = settings
        self.slot = slot
        self._relay = OutputRelay(asyncio.get_running_loop())
        self._groups: set[ReplyGroup] = set()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mrs-request")
        self._forecast: Forecast | None = None
        self._log = log
        self._load = load
        self._tasks: set[asyncio.Task[LoadedModel]] = set()
        self.metrics = Metrics(slot.name, self._stats)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def start(self, exchange: Exchange, model: LoadedModel, starts: Sequence[Start]) -> ReplyGroup:
        """Start the replies to a request, each with one of `starts`; they end with the request.

        Raises ApiError, if too many replies are waiting already, and MrsError.
        """
        self._admit(model, len(starts))
        group = ReplyGroup(self._relay, self._groups.discard)
        for start in starts:
            group.add(start)
        self._groups.add(group)
        exchange.cleanup.append(group.close)
        return group

    def _admit(self, model: LoadedModel, count: int) -> None:
        most = self.slot.request.max_seqs + self.settings.max_queue
        if count > most:
            raise ApiError(
                400,
                f"{count} replies are more than the {most} that run and wait at most: ask for less",
                code="too_many_replies",
            )
        if self.num_replies + count > most:
            raise ApiError(
                429,
                f"{self.settings.max_queue} replies are waiting already: try again later",
                code="queue_full",
                headers={"retry-after": str(self._next_free_s(model))},
            )

    def _next_free_s(self, model: LoadedModel) -> int:
        planned = model.plan.speed
        forecast = self.forecast(model)
        rate = model.engine.prompt_tokens_per_s or planned.prompt.middle
        running = [
            each for group in self._groups for each in group.sequences if each.cache is not None
        ]
        return forecast.next_free_s(running, rate)

    def forecast(self, model: LoadedModel) -> Forecast:
        """The forecast, which begins with the plan's rates."""
        if self._forecast is None:
            self._forecast = Forecast(1 / model.plan.speed.decode.middle)
        return self._forecast

    @property
    def num_replies(self) -> int:
        """Replies that are not complete."""
        return sum(len(group.sequences) for group in self._groups)

    @property
    def num_requests(self) -> int:
        """Requests whose replies are not complete."""
        return len(self._groups)

    def on_finish(
        self, exchange: Exchange, model: LoadedModel
    ) -> Callable[[ReplyEvents, Finished], None]:
        """What to do with each reply to a request that is complete: note what it cost."""
        forecast, record = self.forecast(model), exchange.record
        record.model = self.slot.name

        def note(events: ReplyEvents, end: Finished) -> None:
            forecast.learn(end.usage)
            queue_s = (events.sequence.started_s or events.start_s) - events.start_s
            record.replies.append(ReplyRecord(end.usage, end.reason, max(queue_s, 0.0)))

        return note

    def ended(self, record: RequestRecord, route: str) -> None:
        """Log and count a request that has ended."""
        record.end_s = time.perf_counter()
        self._log.request(record)
        self.metrics.request(record, route)

    async def log_status(self) -> None:
        """Log what the engine does, until this is cancelled."""
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            if (stats := self._stats()) is not None:
                self._log.status(stats)

    def _stats(self) -> EngineStats | None:
        return self.slot.model.engine.stats if self.slot.state == "ready" else None

    def abort_all(self, error: Exception) -> None:
        """End all requests with `error`."""
        for group in list(self._groups):
            group.fail(error)

    async def reload(self, request: RunRequest) -> LoadedModel:
        """Exchange the model for that of `request`; if it does not load, the old one comes back.

        Goes on if the caller is cancelled. Raises ApiError and MrsError.
        """
        assert self.slot.model
        task = asyncio.ensure_future(self._reload(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _reload(self, request: RunRequest) -> LoadedModel:
        before, model = self.slot.request, self.slot.empty()
        while self._groups:
            await asyncio.sleep(_DRAIN_SECONDS)
        if model is not None:
            await self.in_thread(model.close)
        del model
        self._forecast = None
        try:
            return await self._load_into_slot(request)
        except MrsError:
            await self._load_into_slot(before)
            raise

    async def _load_into_slot(self, request: RunRequest) -> LoadedModel:
        model = await self.in_thread(lambda: self._load(request, self.slot.report))
        self.slot.request = request
        self.slot.fill(model)
        return model

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def prefix_salt(exchange: Exchange, cache_salt: str | None) -> int:
    """Differs between API keys and values of `cache_salt`; 0 without both."""
    if not exchange.salt and not cache_salt:
        return 0
    digest = hashlib.sha256(exchange.salt + (cache_salt or "").encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") >> 1 | 1
