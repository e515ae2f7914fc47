"""The thread that steps the engine: requests go in, and each has a queue of outputs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnlyList
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from mrs.architecture.model_spec import ModelSpec
from mrs.engine.image_input import ImageInput
from mrs.engine.sequence import QueueFull, Sequence, SequenceRequest, TokenOutput
from mrs.errors import MrsError
from mrs.request import Sampling

if TYPE_CHECKING:
    from mrs.engine.engine import Engine, EngineStats

#: Readers get the outputs of steps that are shorter than this together: a reader that wakes up
#: takes the interpreter's lock and a processor away from the engine.
_WAKE_INTERVAL_S = 0.002


class Outbox(Protocol):
    """Where the engine's thread puts the outputs of one sequence."""

    def put(self, output: TokenOutput | None, /) -> None:
        """None stands for the end of the thread, which is the end of the sequence."""


class TokenStream:
    """The outputs of one sequence, an iterator that waits for the engine's thread.

    A KeyboardInterrupt ends the waiting and leaves the sequence running; `close` aborts it.
    """

    def __init__(self, sequence: Sequence, outputs: SimpleQueue[TokenOutput | None]) -> None:
        self.sequence = sequence
        self._outbox = outputs
        self._is_over = False

    def __iter__(self) -> Iterator[TokenOutput]:
        return self

    def __next__(self) -> TokenOutput:
        """The next output; the last one has a finish reason. Raises the sequence's error."""
        if self._is_over:
            raise StopIteration
        output = self._outbox.get()
        if output is not None and output.token is not None:
            self._is_over = output.finish_reason is not None
            return output
        self._is_over = True
        if (error := error_of(self.sequence, output)) is not None:
            raise error
        assert output is not None
        return output

    def close(self) -> None:
        """Let the engine end the sequence before its next step. Any thread may call this."""
        self.sequence.abort()


def error_of(sequence: Sequence, output: TokenOutput | None) -> Exception | None:
    """The error of a sequence that ended with `output`, which has no token."""
    if sequence.error is not None:
        return sequence.error
    return _was_closed() if output is None else None


class _Submitted(NamedTuple):
    sequence: Sequence
    outbox: Outbox


class _Inbox:
    """The sequences that the engine's thread has to start; closed at the end."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Submitted | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        #: Whether nothing is to be started, nor the end.
        self.is_empty = self._queue.empty

    def __len__(self) -> int:
        return self._queue.qsize()

    def put(self, submitted: _Submitted) -> None:
        """Raises MrsError if it is closed."""
        with self._lock:
            if self._is_closed:
                raise MrsError(
                    "the model is closed, has failed, or belongs to another process",
                    hint="load it again",
                )
            self._queue.put(submitted)

    def get(self) -> _Submitted | None:
        """Waits for the next one; None after all that came before `close`."""
        return self._queue.get()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._queue.put(None)


class EngineLoop:
    """Steps an engine in a thread of its own while there are sequences.

    Replies go on until they end or are closed, even if nobody reads them. The thread ends with
    `close`, with the last reference to this object, or with the interpreter; a step that it is
    computing is aborted between two layers.
    """

    def __init__(self, engine: Engine, after_step: Callable[[], None] = lambda: None) -> None:
        """`after_step` is called in the thread after each step."""
        self._engine = engine
        self._inbox = _Inbox()
        # A daemon, because the interpreter waits for other threads before it calls `_stop`.
        self._thread = threading.Thread(
            target=_run, args=(engine, self._inbox, after_step), name="mrs-engine", daemon=True
        )
        self._thread.start()
        self._stop = weakref.finalize(self, _stop, self._thread, engine, self._inbox)

    @property
    def context_tokens(self) -> int:
        return self._engine.context_tokens

    @property
    def spec(self) -> ModelSpec:
        """The model that it computes."""
        return self._engine.spec

    @property
    def stats(self) -> EngineStats:
        """Counters. Sequences that the thread has not started yet count as waiting."""
        return self._engine.stats._replace(waiting=self._num_waiting)

    @property
    def _num_waiting(self) -> int:
        return len(self._engine.scheduler.waiting) + len(self._inbox)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """The rate of recent steps with prompts, or the planned one before any is measured."""
        return self._engine.scheduler.budget.tokens_per_s

    def use_drafts(self, *, wanted: bool) -> None:
        """As `Engine.use_drafts`."""
        self._engine.use_drafts(wanted=wanted)

    def submit(self, request: SequenceRequest) -> TokenStream:
        """Start a sequence. Raises UsageError, NotReadable, MrsError if closed, and QueueFull."""
        outputs: SimpleQueue[TokenOutput | None] = SimpleQueue()
        return TokenStream(self.start(request, outputs), outputs)

    def start(self, request: SequenceRequest, outbox: Outbox) -> Sequence:
        """Start a sequence whose outputs go to `outbox`. Raises the same as `submit`."""
        sequence = self._engine.new_sequence(request)
        max_waiting = self._engine.scheduler.max_waiting
        if self._num_waiting >= max_waiting:
            raise QueueFull(max_waiting)
        if not self._thread.is_alive():  # a forked process has no thread of its parent
            self._inbox.close()
        self._inbox.put(_Submitted(sequence, outbox))
        return sequence

    def generate(
        self,
        prompt_ids: ReadOnlyList[int],
        sampling: Sampling,
        images: ReadOnlyList[ImageInput] = (),
    ) -> Iterator[int]:
        """The token ids of one reply, which is aborted when the iterator is closed."""
        stream = self.submit(SequenceRequest(prompt_ids, sampling, images=images))
        try:
            for output in stream:
                if output.token is not None:
                    yield output.token.id
        finally:
            stream.close()

    def close(self) -> None:
        """End all sequences and the thread, and wait until files are written."""
        self._stop()
        self._engine.close()


def _stop(thread: threading.Thread, engine: Engine, inbox: _Inbox) -> None:
    inbox.close()
    engine.abort_all(_was_closed())
    # The thread itself may drop the last reference.
    if thread is not threading.current_thread():
        thread.join()


def _was_closed() -> MrsError:
    return MrsError("the model was closed before the reply was complete", hint="load it again")


def _run(engine: Engine, inbox: _Inbox, after_step: Callable[[], None]) -> None:
    outboxes: dict[Sequence, Outbox] = {}
    outputs: list[TokenOutput] = []
    delivered_s = 0.0
    try:
        with torch.inference_mode():
            while _start_submitted(engine, inbox, outboxes):
                outputs += engine.step(inbox.is_empty)
                if outputs and _is_due(outputs, delivered_s):
                    delivered_s = outputs[-1].time_s
                    _deliver(outputs, outboxes)
                after_step()
    except Exception as error:  # noqa: BLE001 - raised where the replies are read
        _fail(error, inbox, outboxes)
    _deliver(outputs, outboxes)
    for outbox in outboxes.values():
        outbox.put(None)


def _is_due(outputs: list[TokenOutput], delivered_s: float) -> bool:
    """Whether readers get these outputs now, when they got the previous ones at `delivered_s`."""
    has_ended = any(output.finish_reason is not None for output in outputs)
    return has_ended or outputs[-1].time_s - delivered_s >= _WAKE_INTERVAL_S


def _deliver(outputs: list[TokenOutput], outboxes: dict[Sequence, Outbox]) -> None:
    """Move all outputs to their outboxes."""
    for output in outputs:
        outboxes[output.sequence].put(output)
        if output.finish_reason is not None:
            del outboxes[output.sequence]
    outputs.clear()


def _start_submitted(engine: Engine, inbox: _Inbox, outboxes: dict[Sequence, Outbox]) -> bool:
    """Start new sequences, and wait for one if there are none. False once the inbox is closed."""
    while len(inbox) or not outboxes:
        submitted = inbox.get()
        if submitted is None:
            return False
        try:
            engine.scheduler.add(submitted.sequence)
            outboxes[submitted.sequence] = submitted.outbox
        except QueueFull as error:
            submitted.sequence.finish("cancelled", error)
            submitted.outbox.put(None)
    return True


def _fail(error: Exception, inbox: _Inbox, outboxes: dict[Sequence, Outbox]) -> None:
    """End every sequence with an error of the engine itself."""
    inbox.close()
    while (submitted := inbox.get()) is not None:
        outboxes[submitted.sequence] = submitted.outbox
    for sequence in outboxes:
        sequence.finish("cancelled", error)
