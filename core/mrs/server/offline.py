"""Answers the lines of a batch in this process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrs.errors import UsageError
from mrs.events import OnProgress
from mrs.request import RunRequest, ServerLoad
from mrs.run.model_loader import ModelLoader
from mrs.run.request_memory import RequestMemory
from mrs.server.batches.lines import BatchSummary, lines_of, summary_of
from mrs.server.batches.results import Results
from mrs.server.batches.runner import BatchRunner, Usage
from mrs.server.endpoints.batch_cost import BatchCost, batch_cost
from mrs.server.log.lines import RequestLog
from mrs.server.memory import ServerMemory
from mrs.server.models.pool import ModelPool
from mrs.server.models.room import for_many_sequences
from mrs.server.models.slot import ModelSlot
from mrs.server.pauses import collect, short_pauses
from mrs.server.routes.app import build_router
from mrs.server.service import Service
from mrs.server.settings import ServerSettings

if TYPE_CHECKING:
    from mrs.plan.plan import Plan
    from mrs.run.loaded_model import LoadedModel

#: Lines under way for each sequence that runs: what comes next is read meanwhile.
_AHEAD = 2


@dataclass(frozen=True)
class BatchForecast:
    """What the lines that are left take at most, by the plan."""

    lines: int
    cost: BatchCost
    seconds: float


@dataclass(frozen=True)
class BatchReport:
    """`lines` of a file, of which `before` had their answers already, and what the rest took."""

    lines: int
    before: int
    completed: int
    failed: int
    usage: Usage
    seconds: float
    ignored: tuple[str, ...]


class OfflineBatch:
    """The lines of the file at `path`, whose answers are kept in `results`.

    Raises UsageError for a file with problems, and for results of other lines.
    """

    def __init__(self, path: Path, results: Results) -> None:
        self._path, self._results = path, results
        self._settings = ServerSettings(allow_image_urls=True)
        self.summary = _checked(path, summary_of(path, self._settings.max_body_bytes))
        if others := results.done - self.summary.keys:
            count = f"{len(others)} answer{'s' if len(others) > 1 else ''}"
            raise UsageError(
                f"{results.output} has {count} of lines that {path} lacks", hint="name another file"
            )

    @property
    def left(self) -> int:
        """Lines without an answer."""
        return self.summary.count - len(self._results.done)

    def run(
        self,
        request: RunRequest,
        load: Callable[[RunRequest, OnProgress, RequestMemory], LoadedModel],
        on_forecast: Callable[[BatchForecast], object],
        on_answer: Callable[[Results], object],
    ) -> BatchReport:
        """Load the model and answer the lines that are left. Raises MrsError and OSError."""
        server = ServerLoad(self._settings.max_body_bytes, _AHEAD * request.max_seqs)
        request = for_many_sequences(
            replace(request, server=server), lambda each: ModelLoader(each).plan
        )
        memory = ServerMemory()
        model = load(request, lambda _: None, memory.requests)
        try:
            if model.plan.budget is not None:
                memory.limit(model, model.plan.budget)
            model.prompts.prepare_grammars()
            slot = ModelSlot(request)
            slot.fill(model)
            with short_pauses():
                return asyncio.run(self._run(slot, memory, on_forecast, on_answer))
        finally:
            model.close()

    async def _run(
        self,
        slot: ModelSlot,
        memory: ServerMemory,
        on_forecast: Callable[[BatchForecast], object],
        on_answer: Callable[[Results], object],
    ) -> BatchReport:
        pool = ModelPool([slot], _load_nothing, plan=lambda request: ModelLoader(request).plan)
        pool.is_started = True
        at_once = _AHEAD * slot.request.max_seqs
        settings = replace(self._settings, max_queue=at_once)
        log = RequestLog(lambda line: None, as_json=False, only_problems=True)
        service = Service(settings, pool, log, memory)
        collecting = asyncio.ensure_future(collect(lambda: service.num_replies > 0, lambda: 1))
        results = self._results
        before = len(results.done)
        runner = BatchRunner(
            build_router(service),
            results,
            lambda: at_once,
            on_answer=lambda: on_answer(results),
        )
        loop = asyncio.get_running_loop()
        try:
            on_forecast(await self._forecast(service, slot.model.plan))
            start_s = loop.time()
            await runner.run(lines_of(self._path, settings.max_body_bytes, results.done))
            seconds = loop.time() - start_s
        finally:
            collecting.cancel()
            with suppress(asyncio.CancelledError):
                await collecting
            service.close()
        return BatchReport(
            self.summary.count,
            before,
            results.completed,
            results.failed,
            runner.usage,
            seconds,
            tuple(runner.ignored),
        )

    async def _forecast(self, service: Service, plan: Plan) -> BatchForecast:
        """By the mean of the sampled lines."""
        sampled = self.summary.sampled
        costs = [await batch_cost(service, line) for line in sampled]
        cost = sum_of(costs).times(self.left / len(costs)) if costs else BatchCost()
        return BatchForecast(self.left, cost, planned_s(plan, cost, service.models.default.request))


def sum_of(costs: list[BatchCost]) -> BatchCost:
    total = BatchCost()
    for each in costs:
        total = total.plus(each)
    return total


def planned_s(plan: Plan, cost: BatchCost, request: RunRequest) -> float:
    """The planned time of prompts and, at their longest, of replies in full batches."""
    speed = plan.speed
    seconds = cost.prompt_tokens / speed.prompt.expected
    if cost.replies:
        batch = int(min(request.max_seqs, max(cost.replies, 1)))
        middle = (cost.prompt_tokens + cost.most_reply_tokens / 2) / cost.replies
        seconds += cost.most_reply_tokens / speed.decode_of(batch, round(middle)).expected
    return seconds


def _checked(path: Path, summary: BatchSummary) -> BatchSummary:
    if summary.problems:
        first, *others = summary.problems
        more = f"; {len(others)} more lines have problems" if others else ""
        raise UsageError(f"{path}, line {first.line}: {first.message}{more}", hint="mend the file")
    if not summary.count:
        raise UsageError(f"{path} has no lines", hint="write one JSON object a line")
    return summary


def _load_nothing(request: RunRequest, report: OnProgress) -> LoadedModel:
    raise AssertionError("the model of a batch stays loaded")
