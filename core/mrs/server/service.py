"""What all routes share: the model, and the way of replies from the engine to asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mrs.engine.prompt import Prompt
from mrs.request import Sampling
from mrs.server.exchange import Exchange
from mrs.server.model_slot import ModelSlot
from mrs.server.relay import OutputRelay
from mrs.server.reply_group import ReplyGroup
from mrs.server.settings import ServerSettings

if TYPE_CHECKING:
    from mrs.loaded_model import LoadedModel

Result = TypeVar("Result")

#: Threads that render templates, tokenize and decode images.
_THREADS = 4


class Service:
    """Made on the event loop, which all of its methods have to be called on."""

    def __init__(self, settings: ServerSettings, slot: ModelSlot) -> None:
        self.settings = settings
        self.slot = slot
        self._relay = OutputRelay(asyncio.get_running_loop())
        self._groups: set[ReplyGroup] = set()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mrs-request")

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def start(
        self,
        exchange: Exchange,
        model: LoadedModel,
        replies: Sequence[tuple[Prompt, Sampling]],
    ) -> ReplyGroup:
        """Start the replies to a request. Raises ApiError and MrsError."""
        group = ReplyGroup(self._relay, self._groups.discard)
        timeout_s = self.settings.request_timeout_s
        for prompt, sampling in replies:
            group.add(partial(model.start, prompt, sampling, timeout_s=timeout_s))
        self._groups.add(group)
        return group

    @property
    def num_requests(self) -> int:
        """Requests whose replies are not complete."""
        return len(self._groups)

    def abort_all(self, error: Exception) -> None:
        """End all requests with `error`."""
        for group in list(self._groups):
            group.fail(error)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
