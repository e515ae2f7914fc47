"""What all routes share: the models, and the way of replies from the engine to asyncio."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mrs.engine.loop import Outbox
from mrs.engine.reply_events import ReplyEvents
from mrs.engine.sequence import DeadlineExceeded
from mrs.events import Finished
from mrs.process.request_memory import TOKEN_BYTES
from mrs.process.turns import Client, Shares, crowding
from mrs.server.background import num_threads
from mrs.server.batches.runner import BATCH_SENDER
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import MOST_SIGNS, Exchange
from mrs.server.log.lines import STATUS_SECONDS, RequestLog
from mrs.server.log.metrics import Metrics
from mrs.server.log.record import ReplyRecord, RequestRecord
from mrs.server.memory import ServerMemory
from mrs.server.replies.group import ReplyGroup
from mrs.server.replies.relay import OutputRelay
from mrs.server.settings import ServerSettings
from mrs.server.work_queue import WorkQueue

if TYPE_CHECKING:
    from mrs.engine.engine import EngineStats
    from mrs.engine.sequence import Sequence as EngineSequence
    from mrs.run.loaded_model import LoadedModel
    from mrs.server.batches.queue import BatchQueue
    from mrs.server.models.pool import ModelPool
    from mrs.server.models.slot import ModelSlot

Result = TypeVar("Result")
Start = Callable[[Outbox], ReplyEvents]

#: Replies that are started before other requests have their turn: about a millisecond.
_STARTED_AT_ONCE = 8
#: Time between two chunks about the progress of loading.
_PROGRESS_SECONDS = 0.5


class Asker(Protocol):
    """Who asks for replies: a request over HTTP, or a run of this machine.

    is_long     whether it takes long to read what is asked for
    left_s      what is left of the time for the answer; None is no limit
    cleanup     what is called at the end, the last one first
    """

    record: RequestRecord
    cleanup: list[Callable[[], None]]

    @property
    def client(self) -> Client: ...
    @property
    def sender(self) -> Client: ...
    @property
    def is_long(self) -> bool: ...
    @property
    def left_s(self) -> float | None: ...


class Service:
    """Made on the event loop, which all of its methods have to be called on."""

    def __init__(
        self, settings: ServerSettings, models: ModelPool, log: RequestLog, memory: ServerMemory
    ) -> None:
        self.settings = settings
        self.models = models
        self._relay = OutputRelay(asyncio.get_running_loop())
        most_running = max(slot.request.max_seqs for slot in models.slots)
        self._work = WorkQueue(num_threads(), most_running + settings.max_queue)
        self._log = log
        self.bodies, self.responses = memory.bodies, memory.responses
        self._unread = memory.unread
        #: Its result is the error with which all requests were ended.
        self._end: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.metrics = Metrics(self._stats)
        #: Set if the server has a folder for them.
        self.batches: BatchQueue | None = None

    @property
    def most_signs(self) -> int:
        """How many a body may have: no context has room for a text with twice as many."""
        loaded = (slot.model for slot in self.models.slots if slot.is_loaded)
        return max([MOST_SIGNS, *(2 * model.context_tokens for model in loaded)])

    async def in_thread(self, exchange: Asker, work: Callable[[], Result]) -> Result:
        """The result of `work`, which blocks. Raises as `in_turns` does."""
        (result,) = await self.in_turns(exchange, (each() for each in (work,)), 1)
        return result

    async def in_turns(
        self, exchange: Asker, pieces: Iterable[Result], count: int | None = None
    ) -> list[Result]:
        """The results of `pieces`, which block; other clients have their turns in between.

        `count` is how many there are, if that is known. Raises QueueFull, DeadlineExceeded, and the
        error of `abort_all`.
        """
        task = asyncio.ensure_future(
            self._work.do(exchange.client, pieces, count, is_long=exchange.is_long)
        )
        try:
            either: set[asyncio.Future[Any]] = {task, self._end}
            left_s = exchange.left_s
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if self._end.done():
                raise self._end.result()
            if not task.done():
                raise DeadlineExceeded
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def slot_of(
        self, exchange: Exchange, name: str | None, *, takes_adapters: bool = False
    ) -> ModelSlot:
        """The model that answers a request for `name`; a header says if it has another one.

        Programs often have the name of a model of OpenAI fixed. With `takes_adapters` the name may
        be that of an adapter, which `exchange.adapter` is then. Raises ApiError.
        """
        if (adapted := self.models.adapted(name)) is not None:
            if not takes_adapters:
                raise ApiError(
                    400, f"the adapter {name!r} only makes replies", "model", "invalid_value"
                )
            exchange.adapter = name
            return adapted
        try:
            return self.models.named(name)
        except ApiError:
            if len(self.models.slots) > 1 or self.settings.strict_names or self.settings.allow_load:
                raise
        exchange.response_headers["x-model"] = self.models.default.name
        return self.models.default

    async def use(self, exchange: Asker, slot: ModelSlot) -> LoadedModel:
        """The model, which stays loaded until the request ends. Waits until it is loaded.

        Raises ApiError and MrsError.
        """
        await self.models.use(slot)
        exchange.cleanup.append(lambda: self.models.release(slot))
        return slot.model

    async def loading(self, exchange: Exchange, slot: ModelSlot) -> AsyncGenerator[float]:
        """As `use`; gives the share of the model that is loaded, until all of it is."""
        task = asyncio.ensure_future(self.use(exchange, slot))
        try:
            while not (await asyncio.wait({task}, timeout=_PROGRESS_SECONDS))[0]:
                yield slot.progress
            task.result()
        finally:
            task.cancel()

    async def start(self, exchange: Asker, slot: ModelSlot, starts: Sequence[Start]) -> ReplyGroup:
        """Start the replies to a request, each with one of `starts`; they end with the request.

        Other requests go on between them. Raises ApiError, if too many replies are waiting already,
        and MrsError.
        """
        self.admit(exchange, slot, len(starts))
        group = ReplyGroup(self._relay, lambda ended: slot.groups.pop(ended, None), self._unread)
        exchange.cleanup.append(group.drop)
        slot.groups[group] = None
        for number, start in enumerate(starts):
            if number % _STARTED_AT_ONCE == _STARTED_AT_ONCE - 1:
                await asyncio.sleep(0)
                self.admit(exchange, slot, len(starts) - number)
            group.add(start)
        _check_prompts(slot, group)
        return group

    def admit(self, exchange: Asker, slot: ModelSlot, count: int) -> None:
        """Make room for `count` replies, or raise ApiError if they cannot run or wait now."""
        running = len(list(slot.sequences))
        most = slot.request.max_seqs + self.settings.max_queue
        if count > most:
            raise ApiError(
                400,
                f"{count} replies are more than the {most} that run and wait at most: ask for less",
                code="too_many_replies",
            )
        if running + count > most:
            full = ApiError(
                429,
                f"{self.settings.max_queue} replies are waiting already: try again later",
                code="queue_full",
                headers={"retry-after": str(_next_free_s(slot))},
            )
            for group in _crowding_groups(slot, exchange.sender, count, running + count - most):
                group.fail(full)
            if len(list(slot.sequences)) + count > most:
                raise full

    @property
    def num_replies(self) -> int:
        """Replies that are not complete."""
        return sum(len(list(slot.sequences)) for slot in self.models.slots)

    @property
    def num_requests(self) -> int:
        """Requests whose replies are not complete."""
        return sum(len(slot.groups) for slot in self.models.slots)

    def on_finish(
        self, exchange: Asker, slot: ModelSlot
    ) -> Callable[[ReplyEvents, Finished], None]:
        """What to do with each reply to a request that is complete: note what it cost."""
        forecast, record = slot.forecast, exchange.record
        record.model = slot.name

        def note(events: ReplyEvents, end: Finished) -> None:
            forecast.learn(end.usage)
            queue_s = (events.sequence.started_s or events.start_s) - events.start_s
            record.replies.append(ReplyRecord(end.usage, end.reason, max(queue_s, 0.0)))

        return note

    @property
    def spare_sequences(self) -> int:
        """Sequences that nobody but batches uses."""
        running = [each for slot in self.models.slots for each in slot.sequences]
        others = sum(each.client[1:] != (BATCH_SENDER,) for each in running)
        return self.models.default.request.max_seqs - others

    def ended(self, record: RequestRecord, route: str) -> None:
        """Log and count a request that has ended."""
        record.end_s = time.perf_counter()
        self._log.request(record)
        self.metrics.request(record, route)

    async def log_status(self) -> None:
        """Log what the engines do, until this is cancelled."""
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            for name, stats in self._stats().items():
                self._log.status(name, stats)

    def _stats(self) -> dict[str, EngineStats]:
        """The counters of each model that is loaded, by its name."""
        return {slot.name: slot.model.engine.stats for slot in self.models.slots if slot.is_loaded}

    def abort_all(self, error: Exception) -> None:
        """End all requests with `error`, and those that are still being read."""
        if not self._end.done():
            self._end.set_result(error)
        for slot in self.models.slots:
            for group in list(slot.groups):
                group.fail(error)

    def close(self) -> None:
        self._work.close()


def _crowding_groups(slot: ModelSlot, client: Client, added: int, excess: int) -> list[ReplyGroup]:
    """The replies that wait and leave for those of `client`; none if not enough can leave."""
    waiting = {each: group for group in slot.groups if group.is_waiting for each in group.sequences}
    leaving: dict[ReplyGroup, None] = {}
    while excess > 0:
        if (one := crowding(waiting, client, added)) is None:
            return []
        group = waiting[one]
        leaving[group] = None
        for each in group.sequences:
            del waiting[each]
            excess -= 1
    return list(leaving)


def _check_prompts(slot: ModelSlot, group: ReplyGroup) -> None:
    """Raise ApiError if the prompts of `group` have no room among those that run and wait.

    Each client leaves some of it to others, as `Shares` says. A single reply always has room,
    whatever its prompt.
    """
    budget, added = slot.model.plan.budget, group.sequences
    others = [each for other in slot.groups if other is not group for each in other.sequences]
    if budget is None or not added or len(added) + len(others) < 2:
        return
    client, shares = added[0].client, Shares()
    for each in others:
        shares.add(each.client, _prompt_bytes(each))
    added_bytes = sum(map(_prompt_bytes, added))
    if shares.have_room(client, budget.prompts, added_bytes):
        return
    group.close()
    if len(added) > 1 and not Shares().have_room(client, budget.prompts, added_bytes):
        message = f"{len(added)} replies to so long prompts are too many: ask for less"
        raise ApiError(400, message, code="too_many_replies")
    headers = {"retry-after": str(_next_free_s(slot))}
    message = "the prompts that run and wait take all memory for them: try again later"
    raise ApiError(429, message, code="queue_full", headers=headers)


def _prompt_bytes(sequence: EngineSequence) -> int:
    return TOKEN_BYTES * len(sequence.token_ids)


def _next_free_s(slot: ModelSlot) -> int:
    model = slot.model
    rate = model.engine.prompt_tokens_per_s or model.plan.speed.prompt.expected
    running = [each for each in slot.sequences if each.cache is not None]
    return slot.forecast.next_free_s(running, rate)


def prefix_salt(exchange: Exchange, cache_salt: str | None) -> int:
    """Differs between API keys and values of `cache_salt`; 0 without both."""
    if not exchange.salt and not cache_salt:
        return 0
    digest = hashlib.sha256(exchange.salt + (cache_salt or "").encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") >> 1 | 1
