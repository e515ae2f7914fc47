"""Links are measured when ranks meet, and a run is compared with its plan."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import Workers, cluster_decoder, request_for, shared_decoder
from test_exact import config_of
from test_shared_exact import model_of, shared_request

from mrs.distributed.channel import Channel
from mrs.distributed.failures import PeerFailed
from mrs.distributed.link_speed import echo_link, measure_link
from mrs.distributed.measured_run import measure_run
from mrs.distributed.meeting import Listener, dial
from mrs.distributed.messages import LinkSpeed
from mrs.model_loader import ModelLoader
from mrs.request import RunRequest
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.model_files import write_model


def test_a_slow_link_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20 ms more for the way there, and none for the way back."""
    listener = Listener(("127.0.0.1", 0), b"")
    dialed = dial(listener.address, b"")
    accepted = listener.arrived.get(timeout=60)
    assert accepted is not None
    accepted.most_data_bytes = 1 << 20
    send = Channel.send

    def slow(channel: Channel, *given: object) -> None:
        if channel is dialed:
            time.sleep(0.02)
        send(channel, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Channel, "send", slow)
    thread = threading.Thread(target=echo_link, args=(accepted,))
    thread.start()
    found = measure_link(dialed)
    thread.join(60)
    listener.close()
    assert found.latency_s >= 0.01
    assert found.bytes_per_s > 0


def test_the_time_of_a_message_grows_with_its_bytes() -> None:
    assert LinkSpeed(0.001, 1e6).seconds(500_000) == pytest.approx(0.501)


def test_each_process_is_compared_with_its_plan(workers: Workers, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "dense", config_of("dense"), std=0.2)
    request = request_for(folder, workers.port, 2)
    with cluster_decoder(request) as (decoder, cluster):
        run = measure_run(cluster, decoder, cluster._plan)
    assert len(run.links) == 3
    assert run.between_s == pytest.approx(sum(each.seconds(4 * 32) for each in run.links))
    assert all(each.weight_bytes == each.planned.weight_bytes for each in run.ranks)
    assert all(each.resident_bytes for each in run.ranks)
    assert run.between_s < run.planned_token_s[0] < run.planned_token_s[1]


def test_a_lost_worker_ends_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "dense", config_of("dense"), std=0.2)
    request = request_for(folder, 1, 2)
    assert request.cluster is not None
    request = replace(request, cluster=replace(request.cluster, rejoin_limit_s=60.0))

    def gather(asked: RunRequest, *others: object) -> None:
        assert asked.cluster is not None
        raise PeerFailed(f"waits {asked.cluster.rejoin_limit_s:g} s")

    monkeypatch.setattr("mrs.distributed.gather.gather", gather)
    with pytest.raises(PeerFailed, match="waits 0 s"):
        ModelLoader(request).measure_processes()


def test_shares_of_layers_are_compared_as_well(workers: Workers, tmp_path: Path) -> None:
    request = shared_request(model_of("llama", tmp_path), workers.port, 2)
    plan = ModelLoader(request).plan
    with shared_decoder(request) as (decoder, cluster):
        run = measure_run(cluster, decoder, plan)
    assert run.links == ()
    assert all(each.weight_bytes == each.planned.weight_bytes for each in run.ranks)


def test_a_plan_of_workers_that_have_not_joined_is_refused() -> None:
    said = io.StringIO()
    environment = Environment(io.StringIO(), io.StringIO(), said)
    assert main(("plan", "--dry-run", "--workers", "1", "-m", "demo"), environment) == 2
    assert "describe the machines with --machine" in said.getvalue()
