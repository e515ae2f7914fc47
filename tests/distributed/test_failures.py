"""When a process ends, hangs or fails, every other one ends with a line that says who it was."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from clusters import (
    Workers,
    _context,
    cluster_decoder,
    engine_of,
    request_for,
)
from test_exact import PROMPTS, config_of

from mrs.distributed.access import Access
from mrs.distributed.protocol.failures import PeerFailed
from mrs.engine.engine import Engine
from mrs.errors import ExitCode, MrsError
from support.engines import Asked
from support.model_files import write_model
from support.suites import first
from support.tiny_decoders import GREEDY
from support.waiting import until

ENDLESS = replace(GREEDY, max_tokens=300, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), config_of("dense"), std=0.2)


def ask_forever(engine: Engine) -> None:
    """Make replies until an error ends it."""
    while True:
        Asked.of(engine, PROMPTS[1], ENDLESS).finish()


def head_process(model: Path, port: int, count: int, log: str) -> None:
    """A coordinator that says in `log` that it has a token, and then why it has ended."""
    try:
        with cluster_decoder(request_for(model, port, count)) as (decoder, _):
            engine = engine_of(decoder)
            Asked.of(engine, PROMPTS[1], ENDLESS).advance()
            Path(log).write_text("token")
            ask_forever(engine)
    except MrsError as error:
        Path(log).write_text(str(error))
        os._exit(error.exit_code)


@pytest.mark.parametrize(
    ("sent", "how"),
    [
        (signal.SIGKILL, "has ended"),
        pytest.param(signal.SIGSTOP, "does not answer", marks=pytest.mark.full),
    ],
)
def test_a_lost_worker_is_named_by_everyone(
    sent: signal.Signals, how: str, model: Path, tmp_path: Path
) -> None:
    workers = Workers(tmp_path, 2, once=True)

    def pid_of_rank_1() -> int:
        number = 0 if "rank 1" in workers.said(0) else 1
        return workers.processes[number].pid or 0

    victim = 0
    try:
        with cluster_decoder(request_for(model, workers.port, 2)) as (decoder, _):
            victim = pid_of_rank_1()
            engine = engine_of(decoder)
            Asked.of(engine, PROMPTS[1], ENDLESS).advance()
            os.kill(victim, sent)
            with pytest.raises(PeerFailed) as raised:
                ask_forever(engine)
        text = str(raised.value)
        assert text.startswith("rank 1 (")
        assert how in text
        assert "last heard" in text
        other = next(n for n, each in enumerate(workers.processes) if each.pid != victim)
        workers.processes[other].join(60)
        assert workers.processes[other].exitcode == ExitCode.PEER_FAILED
        assert text in workers.said(other)
    finally:
        workers.end()


@pytest.mark.full
@pytest.mark.parametrize("sent", first(1, [signal.SIGKILL, signal.SIGSTOP]))
def test_workers_end_with_their_head(sent: signal.Signals, model: Path, tmp_path: Path) -> None:
    workers, log = Workers(tmp_path, 2, once=True), tmp_path / "head.log"
    head = _context.Process(target=head_process, args=(model, workers.port, 2, str(log)))
    head.start()
    try:
        until(lambda: log.exists() and log.read_text() != "")
        assert log.read_text() == "token"
        os.kill(head.pid or 0, sent)
        for number, process in enumerate(workers.processes):
            process.join(60)
            assert process.exitcode == ExitCode.PEER_FAILED
            assert "(rank 0) " in workers.said(number)
    finally:
        workers.end()
        head.kill()
        head.join()


@pytest.mark.full
def test_a_step_that_contradicts_a_worker_is_reported(model: Path, tmp_path: Path) -> None:
    """The worker says what went wrong, and the coordinator says it again."""
    reason = "a step comes before there are caches"
    workers = Workers(tmp_path, 1, once=True)
    try:
        with cluster_decoder(request_for(model, workers.port, 1)) as (decoder, _):
            engine = engine_of(decoder)
            decoder._workers._ranks[0].log.clear()  # so that no cache is opened
            with pytest.raises(PeerFailed, match=rf"rank 1 \(.*\), in step 1: {reason}"):
                ask_forever(engine)
        workers.processes[0].join(60)
        assert reason in workers.said(0)
    finally:
        workers.end()


@pytest.mark.full
def test_a_worker_takes_the_next_head_with_its_weights(model: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path, 1)
    try:
        for _ in range(2):
            with cluster_decoder(request_for(model, workers.port, 1)) as (decoder, _):
                Asked.of(engine_of(decoder), PROMPTS[0], replace(GREEDY, max_tokens=2)).finish()
        until(lambda: workers.said(0).count("the coordinator has left") == 2)
    finally:
        workers.end()


@pytest.mark.full
def test_a_missing_worker_is_not_waited_for_without_end(model: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path, 1, once=True)
    request = request_for(model, workers.port, 2)
    assert request.cluster is not None
    try:
        limited = replace(request, cluster=replace(request.cluster, wait_limit_s=3.0))
        meeting = cluster_decoder(limited)
        with pytest.raises(PeerFailed, match=r"of 2 workers at 127\.0\.0\.1:.* have not come"):
            meeting.__enter__()
    finally:
        workers.end()


@pytest.mark.full
def test_two_workers_of_one_rank_are_refused_on_both_sides(model: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2, once=True, rank=1)
    try:
        meeting = cluster_decoder(request_for(model, workers.port, 2))
        with pytest.raises(MrsError, match="two workers are rank 1"):
            meeting.__enter__()
        for process in workers.processes:
            process.join(60)
        assert any("two workers are rank 1" in workers.said(n) for n in range(2))
    finally:
        workers.end()


@pytest.mark.full
def test_another_model_is_refused_on_both_sides(model: Path, tmp_path: Path) -> None:
    """Other weights of the same shapes, on the worker's side."""
    other = write_model(tmp_path / "other", config_of("dense"), std=0.3)
    workers = Workers(tmp_path, 1, once=True, access=Access(str(other)))
    try:
        meeting = cluster_decoder(request_for(model, workers.port, 1))
        with pytest.raises(
            MrsError, match=r"rank 1 .* the weights differ from the coordinator's"
        ) as raised:
            meeting.__enter__()
        assert raised.value.exit_code == ExitCode.NOT_READABLE
        workers.processes[0].join(60)
        assert "the weights differ from the coordinator's" in workers.said(0)
        assert workers.processes[0].exitcode == ExitCode.NOT_READABLE
    finally:
        workers.end()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_random_kill_hangs_nobody(seed: int, model: Path, tmp_path: Path) -> None:
    """At any moment, from the meeting to decoding: everyone else ends, with one line."""
    workers, log = Workers(tmp_path, 2, once=True), tmp_path / "head.log"
    head = _context.Process(target=head_process, args=(model, workers.port, 2, str(log)))
    kill_someone(random.Random(seed), head, workers, log)


def kill_someone(
    chance: random.Random,
    head: BaseProcess,
    workers: Workers,
    log: Path,
    is_ready: Callable[[], bool] = lambda: True,
) -> None:
    """Start the coordinator, kill or stop one of all processes, and wait for the others to end."""
    head.start()
    everyone = [head, *workers.processes]
    try:
        until(is_ready)
        time.sleep(chance.random() * 3)
        victim = chance.choice(everyone)
        os.kill(victim.pid or 0, chance.choice([signal.SIGKILL, signal.SIGSTOP]))
        for process in everyone:
            if process is not victim and not (victim in workers.processes and not log.exists()):
                process.join(60)
                assert process.exitcode == ExitCode.PEER_FAILED
    finally:
        workers.end()
        head.kill()
        head.join()
