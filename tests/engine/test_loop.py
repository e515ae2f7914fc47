"""The engine's thread: requests from several threads, limits, and every way to end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mrs.engine.engine import Engine
from mrs.engine.loop import EngineLoop
from mrs.engine.sequence import QueueFull, SequenceRequest
from mrs.errors import MrsError, UsageError
from support.engines import generate, make_engine
from support.tiny_decoders import GREEDY, tiny_decoder
from support.waiting import PATIENCE_S, until

LONG = replace(GREEDY, max_tokens=190)


@pytest.fixture
def engine() -> Engine:
    return make_engine(
        tiny_decoder("dense"), planned_tokens=64, context_tokens=200, max_seqs=2, max_waiting=3
    )


@pytest.fixture
def loop(engine: Engine) -> Iterator[EngineLoop]:
    made = EngineLoop(engine)
    yield made
    made.close()


class Gate:
    """Holds every step of an engine up until it is opened."""

    def __init__(self, engine: Engine) -> None:
        self._step = engine.step
        self.entered, self.opened = threading.Event(), threading.Event()
        engine.step = self

    def __call__(self, may_go_on):
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return self._step(may_go_on)


def engine_threads() -> int:
    return sum(thread.name == "mrs-engine" for thread in threading.enumerate())


def test_threads_get_their_own_replies(loop: EngineLoop) -> None:
    # As many as may wait, in case that none is taken up before the last one is submitted.
    prompts = [[number, 7, 9] for number in range(1, 4)]
    settings = replace(GREEDY, max_tokens=12)
    plain = make_engine(tiny_decoder("dense"), planned_tokens=64, context_tokens=200)
    expected = [generate(plain, prompt, settings) for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda ids: list(loop.generate(ids, settings)), prompts)) == expected
    assert loop.stats[:5] == (0, 0, 0, 3 * 14, 0)


def test_too_many_requests_are_refused(engine: Engine, loop: EngineLoop) -> None:
    gate = Gate(engine)
    streams = [loop.submit(SequenceRequest([5], replace(GREEDY, max_tokens=2)))]
    assert gate.entered.wait(PATIENCE_S)
    while loop.stats.waiting < 3:
        streams.append(loop.submit(SequenceRequest([5], replace(GREEDY, max_tokens=2))))
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        loop.submit(SequenceRequest([5], GREEDY))
    gate.opened.set()
    assert [len(list(stream)) for stream in streams] == [2] * len(streams)


def test_a_prompt_that_makes_no_sense_is_refused_at_once(loop: EngineLoop) -> None:
    with pytest.raises(UsageError):
        loop.submit(SequenceRequest([], GREEDY))


def test_a_closed_stream_ends_its_sequence(loop: EngineLoop) -> None:
    stream = loop.submit(SequenceRequest([1, 2], LONG))
    next(stream)
    stream.close()
    *_, last = stream
    assert (last.token, last.finish_reason) == (None, "cancelled")
    assert loop.stats.running == 0


def test_generate_stops_with_its_iterator(loop: EngineLoop) -> None:
    tokens = loop.generate([1, 2], LONG)
    next(tokens)
    tokens.close()
    until(lambda: loop.stats.running == 0)


def test_those_that_wait_are_told_when_the_loop_is_closed(engine: Engine, loop: EngineLoop) -> None:
    streams = [loop.submit(SequenceRequest([number, 2], LONG)) for number in range(1, 4)]
    next(streams[0])
    loop.close()
    for stream in streams:
        with pytest.raises(MrsError, match="was closed"):
            list(stream)
    with pytest.raises(MrsError, match="is closed"):
        loop.submit(SequenceRequest([1], GREEDY))
    loop.close()


def test_an_error_of_the_engine_itself_reaches_everyone(engine: Engine, loop: EngineLoop) -> None:
    gate = Gate(engine)
    streams = [loop.submit(SequenceRequest([1, 2], LONG))]
    assert gate.entered.wait(PATIENCE_S)
    streams.append(loop.submit(SequenceRequest([3, 4], LONG)))

    def fail(may_go_on):
        raise RuntimeError("a bug")

    gate._step = fail
    gate.opened.set()
    for stream in streams:
        with pytest.raises(RuntimeError, match="a bug"):
            list(stream)
    with pytest.raises(MrsError, match="has failed"):
        loop.submit(SequenceRequest([1], GREEDY))


def test_a_forgotten_loop_ends_its_thread(engine: Engine) -> None:
    before = engine_threads()
    loop = EngineLoop(engine)
    stream = loop.submit(SequenceRequest([1, 2], LONG))
    next(stream)
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
    assert engine_threads() == before
    with pytest.raises(MrsError, match="was closed"):
        list(stream)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_is_told_at_once(loop: EngineLoop) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loop.submit(SequenceRequest([1], GREEDY))
        except MrsError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


PROGRAM = f"""
import sys, time
sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
from support.engines import make_engine
from support.tiny_decoders import GREEDY, tiny_decoder
from support.waiting import PATIENCE_S, until
from mrs.engine.loop import EngineLoop
from mrs.engine.sequence import SequenceRequest
decoder = tiny_decoder("dense")
decoder.stack.layers *= 1000  # so many that a prompt takes minutes
decoder.stack.devices *= 1000
engine = make_engine(decoder, planned_tokens=64, context_tokens=2000, chunk_tokens=1000)
loop = EngineLoop(engine)
stream = loop.submit(SequenceRequest([1] * 1000, GREEDY))
print("submitted", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("waits", "sent"),
    [
        ("list(stream)", signal.SIGINT),
        pytest.param("time.sleep(0.2)", None, marks=pytest.mark.full),
    ],
)
def test_a_program_ends_at_once_and_in_peace(waits: str, sent: int | None) -> None:
    """A step in flight is given up between two layers, before the interpreter is gone."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + waits],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "submitted\n"
        start_s = time.monotonic()
        if sent is not None:
            time.sleep(0.2)
            process.send_signal(sent)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - start_s < 40
    assert process.returncode == (0 if sent is None else -sent), errors
    assert errors == "" or errors.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize(
    ("step_s", "delivered"), [(0.01, [0, 1, 2, 3, 4]), (0.0009, [0, 1, 1, 1, 4])]
)
def test_outputs_of_short_steps_are_delivered_together(
    engine: Engine, step_s: float, delivered: list[int]
) -> None:
    """Before each step, so many outputs of the earlier ones have been delivered."""
    step, sizes, submitted = engine.step, [], threading.Event()

    def timed_step(may_go_on):
        assert submitted.wait(PATIENCE_S)
        sizes.append(stream._outbox.qsize())
        return [each._replace(time_s=1 + len(sizes) * step_s) for each in step(may_go_on)]

    engine.step = timed_step
    loop = EngineLoop(engine)
    stream = loop.submit(SequenceRequest([5, 6], replace(GREEDY, max_tokens=5)))
    submitted.set()
    until(lambda: stream._outbox.qsize() == 5)
    assert sizes == delivered
    loop.close()
