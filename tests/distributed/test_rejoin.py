"""After a worker is lost and another joins, replies go on with the same tokens."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusters import (
    Workers,
    cluster_decoder,
    engine_of,
    request_for,
    single_decoder,
)
from test_exact import PROMPTS, config_of
from test_shared_exact import model_of, shared_request

from mrs.distributed.access import Access
from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.rendezvous import Rendezvous
from mrs.engine.engine import Engine
from mrs.errors import MrsError
from mrs.request import RunRequest
from support.engines import Asked
from support.model_files import write_model
from support.suites import first
from support.tiny_decoders import GREEDY
from support.waiting import until

LONG = replace(GREEDY, max_tokens=24, ignore_eos=True)
STOPPED = pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)  # silence counts after six seconds


def rejoining(request: RunRequest, limit_s: float) -> RunRequest:
    assert request.cluster is not None
    return replace(request, cluster=replace(request.cluster, rejoin_limit_s=limit_s))


def index_of(workers: Workers, rank: int) -> int:
    """The index of the process that has a rank."""
    count = len(workers.processes)
    return next(n for n in range(count) if f"rank {rank} has" in workers.said(n))


def rank_1_of(workers: Workers) -> int:
    return index_of(workers, 1)


def replies_of(engine: Engine, disturb: Callable[[], None] | None = None) -> list[list[int]]:
    """Three replies at once, and a second turn of one; `disturb` is called between tokens."""
    asked = [Asked.of(engine, prompt, LONG) for prompt in PROMPTS[:3]]
    for _ in range(5):
        asked[0].advance()
    if disturb is not None:
        disturb()
    replies = [each.finish() for each in asked]
    turn = [*PROMPTS[1], *replies[1], 5, 6]
    return [*replies, Asked.of(engine, turn, LONG).finish()]


@pytest.mark.values
@pytest.mark.parametrize("sent", [signal.SIGKILL, STOPPED])
@pytest.mark.parametrize("kind", first(1, ["hybrid", "dense"]))
def test_replies_go_on_when_another_worker_joins(
    kind: str, sent: signal.Signals, tmp_path: Path
) -> None:
    """Keys and values, and recurrent states, of a coordinator and two workers."""
    folder = write_model(tmp_path / "model", config_of(kind), std=0.2)
    expected = replies_of(engine_of(single_decoder(request_for(folder, None, 0))))
    workers = Workers(tmp_path, 2)
    spare: list[Workers] = []

    def lose_rank_1() -> None:
        os.kill(workers.processes[rank_1_of(workers)].pid or 0, sent)
        spare.append(Workers(tmp_path, 1, workers.port))

    try:
        request = rejoining(request_for(folder, workers.port, 2), 60)
        with cluster_decoder(request) as (decoder, _):
            assert replies_of(engine_of(decoder), lose_rank_1) == expected
        assert "rank 1 has" in spare[0].said(0)
    finally:
        for each in (workers, *spare):
            each.end()


@pytest.mark.full
def test_workers_may_join_before_the_head_gathers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine delays the coordinator's thread; a refused worker would end (`once`)."""
    folder = write_model(tmp_path / "model", config_of("dense"), std=0.2)
    workers = Workers(tmp_path, 2, once=True)
    spare: list[Workers] = []
    repair = Rendezvous._repair

    def repair_late(self: Rendezvous[Any], error: MrsError) -> None:
        other = 1 - victim
        until(lambda: "joining the coordinator again" in workers.said(other))
        time.sleep(1.0)
        repair(self, error)

    def lose_rank_1() -> None:
        workers.processes[victim].kill()
        spare.append(Workers(tmp_path, 1, workers.port))

    monkeypatch.setattr(Rendezvous, "_repair", repair_late)
    try:
        request = rejoining(request_for(folder, workers.port, 2), 60)
        with cluster_decoder(request) as (decoder, _):
            victim = rank_1_of(workers)
            expected = replies_of(engine_of(decoder))
            assert replies_of(engine_of(decoder), lose_rank_1) == expected
            assert workers.processes[1 - victim].is_alive()
    finally:
        for each in (workers, *spare):
            each.end()


@pytest.mark.full
def test_the_others_keep_their_weights(tmp_path: Path) -> None:
    """The files of the worker that is left are gone by then."""
    folder = write_model(tmp_path / "model", config_of("dense"), std=0.2)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    first = Workers(tmp_path, 1, rank=1)
    port = first.port
    second = Workers(tmp_path, 1, port, access=Access(str(copy)))
    spare: list[Workers] = []

    def lose_one() -> None:
        shutil.rmtree(copy)
        first.end()
        spare.append(Workers(tmp_path, 1, port))

    try:
        request = rejoining(request_for(folder, port, 2), 60)
        with cluster_decoder(request) as (decoder, _):
            replies_of(engine_of(decoder), lose_one)
        assert second.said(0).count("has layers") == 2
    finally:
        for each in (first, second, *spare):
            each.end()


@pytest.mark.full
def test_shares_of_layers_go_on_as_well(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    workers = Workers(tmp_path, 2)
    spare: list[Workers] = []

    def lose_rank_1() -> None:
        workers.processes[rank_1_of(workers)].kill()
        spare.append(Workers(tmp_path, 1, workers.port))

    try:
        request = rejoining(shared_request(model, workers.port, 3), 60)
        with cluster_decoder(request) as (decoder, _):
            expected = replies_of(engine_of(decoder))
            assert replies_of(engine_of(decoder), lose_rank_1) == expected
    finally:
        for each in (workers, *spare):
            each.end()


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGKILL, STOPPED])
@pytest.mark.parametrize("rank", first(1, [3, 1, 2]))
def test_stages_of_groups_go_on_as_well(rank: int, sent: signal.Signals, tmp_path: Path) -> None:
    """Two stages of two: a shard of the first one, and both of the second one."""
    model = model_of("llama", tmp_path)
    workers = Workers(tmp_path, 3)
    spare: list[Workers] = []

    def lose_one() -> None:
        os.kill(workers.processes[index_of(workers, rank)].pid or 0, sent)
        spare.append(Workers(tmp_path, 1, workers.port))

    try:
        request = rejoining(shared_request(model, workers.port, 4, 2), 60)
        with cluster_decoder(request) as (decoder, _):
            expected = replies_of(engine_of(decoder))
            assert replies_of(engine_of(decoder), lose_one) == expected
        assert f"rank {rank} has" in spare[0].said(0)
    finally:
        for each in (workers, *spare):
            each.end()


@pytest.mark.full
def test_a_share_that_does_not_come_back_is_named(tmp_path: Path) -> None:
    """By all processes of both stages."""
    model = model_of("llama", tmp_path)
    workers = Workers(tmp_path, 3, once=True)
    try:
        request = rejoining(shared_request(model, workers.port, 4, 2), 1.0)
        with cluster_decoder(request) as (decoder, _):
            victim = index_of(workers, 3)
            with pytest.raises(PeerFailed, match=r"^rank 3 .* no worker has taken .* within 1 s"):
                replies_of(engine_of(decoder), workers.processes[victim].kill)
        for number, process in enumerate(workers.processes):
            process.join(60)
            if number != victim:
                assert process.exitcode == PeerFailed.exit_code
                assert "rank 3 (" in workers.said(number)
    finally:
        workers.end()


@pytest.mark.full
def test_a_worker_that_does_not_come_back_is_waited_for_so_long(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", config_of("dense"), std=0.2)
    workers = Workers(tmp_path, 2, once=True)
    failures = []
    try:
        request = rejoining(request_for(folder, workers.port, 2), 1.0)
        with cluster_decoder(request) as (decoder, cluster):
            cluster.rendezvous.on_failure = failures.append
            victim = rank_1_of(workers)
            with pytest.raises(PeerFailed, match=r"^rank 1 .* no worker has taken .* within 1 s"):
                replies_of(engine_of(decoder), workers.processes[victim].kill)
        until(lambda: bool(failures))  # it is called after the replies have ended
        assert len(failures) == 1
        other = workers.processes[1 - victim]
        other.join(60)
        assert other.exitcode == PeerFailed.exit_code
    finally:
        workers.end()
