"""When one of the processes that share layers ends or hangs, all others end and name it."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
from clusters import Workers, _context, cluster_decoder, engine_of
from test_exact import PROMPTS
from test_failures import ENDLESS, ask_forever, kill_someone
from test_shared_exact import model_of, shared_request

from mrs.distributed import process_group
from mrs.distributed.process_group import SharedFile
from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.shard import memory_bytes
from mrs.errors import ExitCode, MrsError
from support.engines import Asked
from support.waiting import until

RANKS = 3
#: A process that was killed is noticed at once, one that was stopped after six seconds of silence.
DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of("llama", tmp_path_factory.mktemp("model"))


def head_process(model: Path, port: int, log: str) -> None:
    """A coordinator that says in `log` that it has a token, and then why it has ended."""
    try:
        with cluster_decoder(shared_request(model, port, RANKS)) as (decoder, _):
            engine = engine_of(decoder)
            Asked.of(engine, PROMPTS[1], ENDLESS).advance()
            Path(log).write_text("token")
            ask_forever(engine)
    except MrsError as error:
        os._exit(error.exit_code)


STOPPED = pytest.mark.slow  # silence counts after six seconds


@pytest.mark.full
@pytest.mark.parametrize(
    ("sent", "how"),
    [
        (signal.SIGKILL, "has ended"),
        pytest.param(signal.SIGSTOP, "does not answer", marks=STOPPED),
    ],
)
def test_a_lost_worker_is_named_by_everyone(
    sent: signal.Signals, how: str, model: Path, tmp_path: Path
) -> None:
    workers = Workers(tmp_path, RANKS - 1, once=True)
    try:
        with cluster_decoder(shared_request(model, workers.port, RANKS)) as (decoder, _):
            first = next(n for n in range(RANKS - 1) if "rank 1" in workers.said(n))
            victim, other = workers.processes[first], workers.processes[1 - first]
            engine = engine_of(decoder)
            Asked.of(engine, PROMPTS[1], ENDLESS).advance()
            os.kill(victim.pid or 0, sent)
            since_s = time.monotonic()
            with pytest.raises(
                PeerFailed, match=rf"^rank 1 \(.*{how} in step .*last heard"
            ) as raised:
                ask_forever(engine)
        other.join(60)
        assert time.monotonic() - since_s < 6 * DEADLINE_S
        assert other.exitcode == ExitCode.PEER_FAILED
        assert str(raised.value) in workers.said(1 - first)
    finally:
        workers.end()


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=STOPPED)])
def test_a_lost_worker_ends_a_sum_of_torchs_process_groups(
    sent: signal.Signals, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for cards: a rank that waits for the lost one learns it from its connection."""
    monkeypatch.setattr(process_group, "uses_collectives", lambda device: True)
    workers = Workers(tmp_path, RANKS - 1, once=True, collectives=True)
    try:
        with cluster_decoder(shared_request(model, workers.port, RANKS)) as (decoder, _):
            first = next(n for n in range(RANKS - 1) if "rank 1" in workers.said(n))
            engine = engine_of(decoder)
            Asked.of(engine, PROMPTS[1], ENDLESS).advance()
            os.kill(workers.processes[first].pid or 0, sent)
            with pytest.raises(PeerFailed, match=r"^rank 1 \("):
                ask_forever(engine)
        other = workers.processes[1 - first]
        other.join(60)
        assert other.exitcode == ExitCode.PEER_FAILED
    finally:
        workers.end()


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=STOPPED)])
def test_workers_end_with_their_head(sent: signal.Signals, model: Path, tmp_path: Path) -> None:
    workers, log = Workers(tmp_path, RANKS - 1, once=True), tmp_path / "head.log"
    head = _context.Process(target=head_process, args=(model, workers.port, str(log)))
    head.start()
    try:
        until(lambda: log.exists() and log.read_text() == "token")
        os.kill(head.pid or 0, sent)
        for number, process in enumerate(workers.processes):
            process.join(60)
            assert process.exitcode == ExitCode.PEER_FAILED
            assert "(rank 0) " in workers.said(number)
    finally:
        workers.end()
        head.kill()
        head.join()


@pytest.mark.slow
def test_an_error_in_a_step_of_the_head_ends_the_others(model: Path, tmp_path: Path) -> None:
    """They would wait for its part of the sum without end."""
    workers = Workers(tmp_path, 1, once=True)
    try:
        with cluster_decoder(shared_request(model, workers.port, 2)) as (decoder, _):
            engine = engine_of(decoder)
            Asked.of(engine, PROMPTS[1], ENDLESS).advance()
            decoder.stack.layers[1].mixer = None
            with pytest.raises(TypeError):
                ask_forever(engine)
            workers.processes[0].join(60)
        assert workers.processes[0].exitcode == ExitCode.PEER_FAILED
    finally:
        workers.end()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_random_kill_hangs_nobody(seed: int, model: Path, tmp_path: Path) -> None:
    """From the moment when the first process has loaded its share."""
    workers, log = Workers(tmp_path, RANKS - 1, once=True), tmp_path / "head.log"
    head = _context.Process(target=head_process, args=(model, workers.port, str(log)))

    def has_met() -> bool:
        return any("has a shard" in workers.said(n) for n in range(RANKS - 1))

    kill_someone(random.Random(seed), head, workers, log, has_met)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files need a name there")
def test_shared_memory_has_no_name() -> None:
    """So a coordinator that is killed while the others open it leaves nothing behind."""
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    before = {path for folder in folders for path in folder.glob("mrs-*")}
    file = SharedFile(memory_bytes(2))
    assert {path for folder in folders for path in folder.glob("mrs-*")} <= before
    assert file.path.stat().st_size == memory_bytes(2)
    file.remove()
    assert not file.path.exists()
