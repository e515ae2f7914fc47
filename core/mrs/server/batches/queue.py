"""Runs the batches of a server beside its other requests, one of each owner at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from starlette.types import ASGIApp

from mrs.errors import MrsError
from mrs.server.batches.folder import BatchFolder, result_ids
from mrs.server.batches.lines import BatchSummary, lines_of, summary_of
from mrs.server.batches.results import BatchError, BatchResult, Results, results_in
from mrs.server.batches.runner import BatchRunner
from mrs.server.http.errors import ApiError, api_error
from mrs.server.schemas.batch import ENDED, BatchObject, BatchStatus, LineError, LineErrors

#: Lines of a file, as OpenAI has it.
MOST_LINES = 50_000
#: Owners whose batches run at once.
_MOST_RUNNING = 4
#: How often it is looked for what has become too old.
_EXPIRE_S = 3600.0


class BatchQueue:
    """Belongs to the event loop; `folder` keeps what it does, so that a later process goes on.

    `app` answers lines, of which `at_once` may be under way. `on_problem` gets a line for the
    operator.
    """

    def __init__(
        self,
        folder: BatchFolder,
        app: ASGIApp,
        at_once: Callable[[], int],
        most_body_bytes: int,
        on_problem: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self._app = app
        self._at_once = at_once
        self._most_body_bytes = most_body_bytes
        self._on_problem = on_problem
        self._running: dict[str, asyncio.Task[None]] = {}
        self._batch_of: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Run batches until this is cancelled; those under way are left to a later process."""
        try:
            while True:
                self._changed.clear()
                try:
                    await asyncio.to_thread(self.folder.expire)
                except OSError as error:
                    self._on_problem(f"files of batches that are too old stay: {error}")
                self._start()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _EXPIRE_S)
        finally:
            running = list(self._running.values())
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def wake(self) -> None:
        """A batch has come, or has ended."""
        self._changed.set()

    async def cancel(self, owner: str, batch_id: str) -> BatchObject:
        """Stop a batch; its answers so far are kept. Raises ApiError."""
        batch = self.folder.batch(owner, batch_id)
        if batch.status in ENDED:
            message = f"{batch_id} is {batch.status} already"
            raise ApiError(409, message, "batch_id", "batch_ended")
        batch.status, batch.cancelling_at = "cancelling", _now()
        await asyncio.to_thread(self.folder.save, batch)
        if self._batch_of.get(owner) == batch_id:
            self._running[owner].cancel()
        self.wake()
        return batch

    def _start(self) -> None:
        for owner, batch in self.folder.waiting():
            if owner not in self._running and len(self._running) < _MOST_RUNNING:
                task = asyncio.ensure_future(self._run(owner, batch))
                self._running[owner], self._batch_of[owner] = task, batch.id
                task.add_done_callback(partial(self._end, owner))

    def _end(self, owner: str, task: asyncio.Task[None]) -> None:
        del self._running[owner], self._batch_of[owner]
        self.wake()

    async def _run(self, owner: str, batch: BatchObject) -> None:
        """Run a batch to its end, or until this is cancelled."""
        try:
            await self._answer(owner, batch)
        except asyncio.CancelledError:
            if batch.status != "cancelling":  # the server stops
                raise
        except (MrsError, ApiError, OSError) as error:
            self._on_problem(f"{batch.id} failed: {error}")
            told = api_error(error).body.error
            problem = LineError(told.code or "failed", told.message)
            batch.errors = LineErrors([problem])
            await self._close(owner, batch, "failed")
        if batch.status == "cancelling":
            await self._close(owner, batch, "cancelled")

    async def _answer(self, owner: str, batch: BatchObject) -> None:
        if batch.status == "cancelling":
            return
        path = self.folder.path(batch.input_file_id)
        summary = await asyncio.to_thread(
            summary_of, path, self._most_body_bytes, most_lines=MOST_LINES, url=batch.endpoint
        )
        if errors := _errors(summary):
            batch.errors = LineErrors(errors)
            await self._close(owner, batch, "failed")
            return
        batch.status, batch.in_progress_at = "in_progress", batch.in_progress_at or _now()
        batch.request_counts.total = summary.count
        await asyncio.to_thread(self.folder.save, batch)
        output, failed = map(self.folder.path, result_ids(batch.id))
        with results_in(output, failed) as results:
            is_late = await self._answer_lines(owner, batch, results)
        await self._close(owner, batch, "expired" if is_late else "completed")

    async def _answer_lines(self, owner: str, batch: BatchObject, results: Results) -> bool:
        """Whether the time was over before all lines were answered."""
        path = self.folder.path(batch.input_file_id)

        def note() -> None:
            counts = batch.request_counts
            counts.completed, counts.failed = results.completed, results.failed
            self.folder.grow(owner, results.take_written_bytes())

        runner = BatchRunner(
            self._app, results, self._at_once, bytes.fromhex(owner), on_answer=note
        )
        note()
        try:
            async with asyncio.timeout(batch.expires_at - time.time()):
                await runner.run(lines_of(path, self._most_body_bytes, results.done))
        except TimeoutError:
            late = BatchError("batch_expired", "the batch had no more time for this line")
            for line in lines_of(path, self._most_body_bytes, results.done):
                results.add(BatchResult(f"batch_req_{line.key.hex()}", line.custom_id, None, late))
                note()
            return True
        return False

    async def _close(self, owner: str, batch: BatchObject, status: BatchStatus) -> None:
        """End a batch, and name its files; what cannot be written is told."""
        output, failed = result_ids(batch.id)
        keep = self.folder.keep_result
        batch.finalizing_at = _now()
        try:
            batch.output_file_id = await asyncio.to_thread(keep, owner, output)
            batch.error_file_id = await asyncio.to_thread(keep, owner, failed)
        except OSError as error:
            self._on_problem(f"the answers of {batch.id} have no name: {error}")
        setattr(batch, f"{status}_at", _now())
        batch.status = status
        try:
            await asyncio.to_thread(self.folder.save, batch)
        except OSError as error:
            self._on_problem(f"the end of {batch.id} is not written: {error}")


def _errors(summary: BatchSummary) -> list[LineError]:
    if not summary.problems and not summary.count:
        return [LineError("empty_file", "the file has no lines")]
    return [LineError(each.code, each.message, each.line) for each in summary.problems]


def _now() -> int:
    return int(time.time())
