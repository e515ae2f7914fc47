"""Links are measured when ranks meet, and a run is compared with its plan."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusters import SECRET, Workers, cluster_decoder, request_for
from test_exact import config_of
from test_shared_exact import model_of, shared_request

from mrs.distributed.measure import fastest_by_measurement, measure_run
from mrs.distributed.pipeline import echo_link, measure_link
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.protocol.handshake import Listener, dial
from mrs.distributed.protocol.messages import DeviceReport, LinkSpeed
from mrs.distributed.shard import RankPlan, one_device_plan
from mrs.plan.machines import MachinesPlan
from mrs.request import RunRequest
from mrs.run.measure import measure_processes
from mrs.run.model_loader import ModelLoader
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.model_files import LLAMA_70B, write_headers, write_model


def test_a_slow_link_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20 ms more for the way there, and none for the way back."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    dialed = dial(listener.address, SECRET)
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


@pytest.mark.full
def test_each_process_is_compared_with_its_plan(workers: Workers, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "dense", config_of("dense"), std=0.2)
    request = request_for(folder, workers.port, 2)
    with cluster_decoder(request) as (decoder, cluster):
        run = measure_run(cluster, decoder, ModelLoader(request).plan, request)
    assert len(run.links) == 3
    assert run.between_s == pytest.approx(sum(each.seconds(4 * 32) for each in run.links))
    assert all(each.weight_bytes == each.planned.weight_bytes for each in run.ranks)
    assert all(each.resident_bytes for each in run.ranks)
    assert run.between_s < run.planned_token_s[0] < run.planned_token_s[1]
    assert run.fastest is not None
    assert run.fastest.unused == tuple(each.name for each in cluster.coordinator.members)


def measured_plan(
    folder: Path, free_bytes: int, links: list[LinkSpeed], machines: tuple[str, str]
) -> MachinesPlan:
    """The fastest placement of 18 GB on a coordinator and two workers, ten times as fast."""
    write_headers(folder, {**LLAMA_70B, "num_hidden_layers": 8})
    planner = ModelLoader(request := request_for(folder, None, 0)).planner
    own = replace(planner.devices[0], available_bytes=free_bytes, bandwidth_bytes_per_s=1e9)
    plans = [RankPlan(planner, one_device_plan(planner, request), range(1))]
    plans[0] = plans[0]._replace(plan=replace(plans[0].plan, devices=(own,)))
    join = SimpleNamespace(device=DeviceReport("cpu", "CPU", free_bytes, 1e10))
    members = [
        SimpleNamespace(name=f"rank {n}", join=join, machine=machine)
        for n, machine in enumerate(machines, 1)
    ]
    cluster: Any = SimpleNamespace(
        plans=plans, coordinator=SimpleNamespace(members=members), links=links
    )
    made = fastest_by_measurement(cluster, request)
    assert made is not None
    return made


def test_a_slow_link_leaves_a_process_out_whose_memory_is_not_needed(tmp_path: Path) -> None:
    """Without it the fast one of two workers is used."""
    links = [LinkSpeed(1e-4, 1e9), LinkSpeed(10.0, 1e9), LinkSpeed(10.0, 1e9)]
    made = measured_plan(tmp_path, 100 << 30, links, ("10.0.0.1", "10.0.0.2"))
    assert made.unused == ("rank 2",)
    assert [each.machine for each in made.stages] == ["rank 0", "rank 1"]


def test_workers_on_one_machine_share_its_memory(tmp_path: Path) -> None:
    links = [LinkSpeed(1e-4, 1e9)] * 3
    assert measured_plan(tmp_path / "a", 8 << 30, links, ("10.0.0.1", "10.0.0.2")).stages
    assert not measured_plan(tmp_path / "b", 8 << 30, links, ("10.0.0.1", "10.0.0.1")).stages


def test_a_lost_worker_ends_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "dense", config_of("dense"), std=0.2)
    request = request_for(folder, 1, 2)
    assert request.cluster is not None
    request = replace(request, cluster=replace(request.cluster, rejoin_limit_s=60.0))

    def gather(asked: RunRequest, *others: object) -> None:
        assert asked.cluster is not None
        raise PeerFailed(f"waits {asked.cluster.rejoin_limit_s:g} s")

    monkeypatch.setattr("mrs.distributed.cluster.Cluster.gather", gather)
    with pytest.raises(PeerFailed, match="waits 0 s"):
        measure_processes(ModelLoader(request))


@pytest.mark.full
def test_shares_of_layers_are_compared_as_well(workers: Workers, tmp_path: Path) -> None:
    request = shared_request(model_of("llama", tmp_path), workers.port, 2)
    plan = ModelLoader(request).plan
    with cluster_decoder(request) as (decoder, cluster):
        run = measure_run(cluster, decoder, plan, request)
    assert run.links == ()
    assert all(each.weight_bytes == each.planned.weight_bytes for each in run.ranks)


def test_a_plan_of_workers_that_have_not_joined_is_refused() -> None:
    said = io.StringIO()
    environment = Environment(io.StringIO(), io.StringIO(), said)
    assert main(("plan", "--dry-run", "--workers", "1", "-m", "demo"), environment) == 2
    assert "describe the machines with --machine" in said.getvalue()
