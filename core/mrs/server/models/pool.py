"""The models of a server: loads them when requests need them, and unloads others for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mrs.engine.sequence import DeadlineExceeded
from mrs.events import OnProgress
from mrs.plan.coexistence import reserved_bytes
from mrs.plan.plan import Plan
from mrs.request import RunRequest
from mrs.server.http.errors import ApiError
from mrs.server.models.memory import in_own_thread, return_memory
from mrs.server.models.room import for_many_sequences, models_to_unload, require_room
from mrs.server.models.slot import ModelSlot

if TYPE_CHECKING:
    from mrs.run.loaded_model import LoadedModel

Result = TypeVar("Result")
Load = Callable[[RunRequest, OnProgress], "LoadedModel"]


class ModelPool:
    """Loads one model at a time; the requests that wait for a model are its group.

    Groups are served in the order of their first requests. To load a model, others are unloaded
    if `models_to_unload` names them: at once if nobody uses them, or else after the replies that
    run; new requests for those wait for their next turn meanwhile, so that no group waits for ever.
    A model that nobody used for `keep_alive_s` seconds is unloaded; None is never.

    `plan` tells the memory that a request needs; `find` makes the request of a model that a client
    names on the fly, None if that is not allowed. Belongs to the event loop.
    """

    def __init__(
        self,
        slots: Iterable[ModelSlot],
        load: Load,
        *,
        plan: Callable[[RunRequest], Plan],
        find: Callable[[str], RunRequest] | None = None,
        keep_alive_s: float | None = None,
        max_waiting: int = 64,
        timeout_s: float | None = None,
    ) -> None:
        self.slots = list(slots)
        self.is_started = False
        #: Whether new requests should go elsewhere: those that come are answered for some time.
        self.is_leaving = False
        self._load = load
        self._plan = plan
        self._find = find
        self._keep_alive_s = keep_alive_s
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        #: Slots with requests that wait, in the order of their first ones.
        self._queue: dict[ModelSlot, None] = {}
        self._queued = asyncio.Event()
        #: Held while models are loaded or unloaded.
        self._lock = asyncio.Lock()
        self._is_stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def default(self) -> ModelSlot:
        return self.slots[0]

    def named(self, name: str | None) -> ModelSlot:
        """The model of this name; None, an empty one and `default` are the default. ApiError."""
        if not name or name == "default":
            return self.default
        by_id = {slot.request.source.model_id: slot for slot in reversed(self.slots)}
        known = by_id | {each: slot for slot in self.slots for each in slot.names}
        if name in known:
            return known[name]
        names = ", ".join(each for slot in self.slots for each in slot.names)
        raise ApiError(
            404, f"there is no model {name!r}: ask for {names}", "model", "model_not_found"
        )

    def adapted(self, name: str | None) -> ModelSlot | None:
        """The model that has an adapter of this name for requests to choose, if there is one."""
        return next((slot for slot in self.slots if name in slot.adapter_names), None)

    async def named_or_new(self, name: str) -> ModelSlot:
        """As `named`, but a model that is not known is added, if that is allowed. ApiError."""
        if self._find is None:
            return self.named(name)
        with suppress(ApiError):
            return self.named(name)
        request = await in_own_thread(partial(self._find, name))
        with suppress(ApiError):
            return self.named(name)  # another request has added it meanwhile
        self.slots.append(ModelSlot(request, name))
        return self.slots[-1]

    def forget(self, slot: ModelSlot) -> None:
        """Remove a model that could not be loaded, if nobody waits for it."""
        if not slot.is_loaded and not slot.waiting and len(self.slots) > 1:
            self.slots.remove(slot)

    async def start(self, on_ready: Callable[[LoadedModel], object]) -> None:
        """Load the default model, call `on_ready` once its requests are answered, then serve those
        that wait for other models. Raises MrsError."""
        await self._fill(self.default)
        self.is_started = True
        on_ready(self.default.model)
        await self._serve_queue()

    async def use(self, slot: ModelSlot) -> None:
        """Wait until the model is loaded; it stays so until `slot.release`. ApiError, MrsError.

        Requests that come while the first model loads wait, too."""
        if self._is_stopping:
            raise _shutting_down()
        if slot.is_loaded and not slot.is_leaving:
            slot.take()
            return
        if sum(len(each.waiting) for each in self.slots) >= self._max_waiting:
            message = f"{self._max_waiting} requests wait for models already: try again later"
            raise ApiError(429, message, code="queue_full", headers={"retry-after": "5"})
        future = asyncio.get_running_loop().create_future()
        slot.waiting.append(future)
        self._queue[slot] = None
        self._queued.set()
        try:
            await asyncio.wait({future}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            if not future.cancel() and future.exception() is None:
                self.release(slot)
            raise
        finally:
            if future in slot.waiting:
                slot.waiting.remove(future)
        if future.cancel():
            raise DeadlineExceeded
        future.result()

    def release(self, slot: ModelSlot) -> None:
        slot.release()
        self._expire_later(slot)

    def _expire_later(self, slot: ModelSlot) -> None:
        if self._keep_alive_s is not None and not slot.users:
            loop, used_s = asyncio.get_running_loop(), slot.last_used_s
            loop.call_later(self._keep_alive_s, lambda: self._task(self._expire(slot, used_s)))

    async def unload(self, slot: ModelSlot) -> None:
        """Unload a model that nobody uses, even if the caller is cancelled. Raises ApiError."""
        await asyncio.shield(self._task(self._unload(slot)))

    async def exchange(self, slot: ModelSlot, change: Callable[[RunRequest], RunRequest]) -> str:
        """Load what `change` makes of the model's request, after the replies that run.

        What cannot be planned or does not fit leaves the model as it is; if loading fails, the old
        one is loaded again. Returns the summary of the new model. Goes on if the caller is
        cancelled. Raises MrsError, and what `change` raises.
        """
        return await asyncio.shield(self._task(self._exchange(slot, change)))

    async def _unload(self, slot: ModelSlot) -> None:
        async with self._lock:
            if slot.users:
                requests = "1 request uses" if slot.users == 1 else f"{slot.users} requests use"
                message = f"{requests} {slot.name}: unload it when they are answered"
                headers = {"x-should-retry": "false"}
                raise ApiError(409, message, "model", "model_busy", headers)
            await self._empty(slot)

    async def _exchange(self, slot: ModelSlot, change: Callable[[RunRequest], RunRequest]) -> str:
        async with self._lock:
            before = slot.request
            request = change(before)
            plans = [each.model.plan for each in self.slots if each.is_loaded]
            await in_own_thread(partial(require_room, request, plans, self._plan))
            slot.is_leaving = True
            await self._empty(slot)
            try:
                await self._load_into(slot, request)
            except Exception:
                await self._load_into(slot, before)
                raise
            slot.request = request
            return slot.summary  # before another exchange empties the slot

    async def _serve_queue(self) -> None:
        while True:
            await self._queued.wait()
            while self._queue:
                slot = next(iter(self._queue))
                del self._queue[slot]
                slot.waiting = [each for each in slot.waiting if not each.done()]
                if slot.waiting:
                    await self._serve(slot)
            self._queued.clear()

    async def _serve(self, slot: ModelSlot) -> None:
        """Load the model for the requests that wait for it."""
        try:
            await self._fill(slot)
        except Exception as error:  # noqa: BLE001 - raised where the requests wait
            slot.refuse(_load_error(slot, error))
        else:
            slot.grant()

    async def _fill(self, slot: ModelSlot) -> None:
        """Load the model if it is not loaded."""
        async with self._lock:
            slot.is_leaving = False
            if not slot.is_loaded:
                await self._load_into(slot, slot.request)

    async def _load_into(self, slot: ModelSlot, request: RunRequest) -> None:
        """Load the model of `request`, after others have made room."""
        request = replace(request, max_models=len(self.slots))
        with slot.loading():
            others = await self._make_room(request)
            request = replace(request, reserved_bytes=tuple(reserved_bytes(others).items()))
            request = await in_own_thread(partial(for_many_sequences, request, self._plan))
            slot.fill(await in_own_thread(partial(self._load, request, slot.report)))
        self._expire_later(slot)

    async def _make_room(self, request: RunRequest) -> list[Plan]:
        """Unload models until `request` fits; the plans of those that stay."""
        loaded = [each for each in self.slots if each.is_loaded]
        loaded.sort(key=lambda each: (each.users > 0, each.last_used_s))
        plans = [each.model.plan for each in loaded]
        count = await in_own_thread(lambda: models_to_unload(request, plans, self._plan))
        for each in loaded[:count]:
            each.is_leaving = True
        for each in loaded[:count]:
            await self._empty(each)
        return plans[count:]

    async def _empty(self, slot: ModelSlot) -> None:
        """Unload the model when nobody uses it any more, and return its memory to the system."""
        await slot.until_unused()
        model = slot.empty()
        if model is not None:
            await in_own_thread(model.close)
            del model
            await in_own_thread(return_memory)

    async def _expire(self, slot: ModelSlot, used_s: float) -> None:
        """Unload the model if nobody has used it since."""
        async with self._lock:
            if not slot.users and not slot.waiting and slot.last_used_s == used_s:
                await self._empty(slot)

    def _task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """A task that ends even if nobody waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def close(self, timeout_s: float) -> None:
        """Unload all models. Raises TimeoutError if one is being loaded for longer than that."""
        self.stop()
        await asyncio.wait_for(self._lock.acquire(), timeout_s)
        for slot in self.slots:
            if (model := slot.empty()) is not None:
                await in_own_thread(model.close)

    def stop(self) -> None:
        """Refuse new requests, and end those that wait."""
        self._is_stopping = True
        for slot in self.slots:
            slot.refuse(_shutting_down())

    def check_open(self) -> None:
        """Raises ApiError before the default model is loaded, and once the server is to stop."""
        if self._is_stopping or self.is_leaving:
            raise _shutting_down()
        self.check_started()

    def check_started(self) -> None:
        """Raises ApiError before the default model is loaded."""
        if not self.is_started:
            done = f"{self.default.progress:.0%}"
            message = f"the model is loading, {done} is done: try again later"
            raise _unavailable(message, "model_loading")


def _unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, headers={"retry-after": "5"})


def _shutting_down() -> ApiError:
    return _unavailable("the server is shutting down: try another one", "shutting_down")


def _load_error(slot: ModelSlot, error: Exception) -> ApiError:
    """The error of a model that cannot be loaded: to try again at once would not help."""
    if isinstance(error, ApiError):
        return error
    headers = {"x-should-retry": "false"}
    message = f"{slot.name} cannot be loaded: {error}"
    return ApiError(500, message, "model", "model_load_failed", headers)
