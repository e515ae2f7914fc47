"""Whether processes share layers is up to the coordinator, where the user does not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clusters import Workers, cluster_decoder, engine_of, request_for
from ordered_reference import ordered_reference
from test_exact import logits_of, talk
from test_shared_exact import model_of

from mrs.distributed import cluster, placement
from mrs.distributed.protocol.messages import DeviceReport
from mrs.distributed.shard import one_device_plan
from mrs.run.model_loader import ModelLoader
from support.model_files import SMALL_LLAMA, write_headers


def choice(folder: Path, machines: list[str], nodes: int, bytes_per_s: float = 1e9) -> int:
    """With workers on these machines ('' is the coordinator's), whose CPUs have so many nodes."""
    write_headers(folder, SMALL_LLAMA)
    planner = ModelLoader(request := request_for(folder, None, 0)).planner
    plan = one_device_plan(planner, request)
    own = replace(plan.devices[0], bandwidth_bytes_per_s=bytes_per_s)
    join = SimpleNamespace(device=DeviceReport("cpu", "CPU", 64 << 30, bytes_per_s, nodes))
    members: list[Any] = [SimpleNamespace(join=join, machine=machine) for machine in machines]
    plan = replace(plan, devices=(own,))
    return placement.chosen_group_size(request, planner, plan, members)


@pytest.mark.parametrize(
    ("nodes", "machines", "size"),
    [
        (1, [""], 1),  # one memory controller: nothing to gain
        (2, [""], 2),
        (2, ["", "10.0.0.2", "10.0.0.2"], 2),
        (2, ["", "10.0.0.2"], 1),  # the other machine has one process only
    ],
)
def test_memory_nodes_decide(
    nodes: int, machines: list[str], size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "memory_nodes", lambda: [{n} for n in range(nodes)])
    assert choice(tmp_path, machines, nodes) == size


def test_the_variable_of_mistralrs_turns_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "memory_nodes", lambda: [{0}, {1}])
    monkeypatch.setenv("MISTRALRS_NO_NCCL", "1")
    assert choice(tmp_path, [""], 2) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1, 2])
def test_the_head_does_what_it_has_chosen(
    size: int, tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama", tmp_path)
    reference = ordered_reference(request_for(model, None, 0), size)
    expected, logits = talk(engine_of(reference)), logits_of(reference)
    request = request_for(model, workers.port, 1)
    assert request.cluster is not None
    request = replace(request, cluster=replace(request.cluster, group_size=0))
    monkeypatch.setattr(cluster, "chosen_group_size", lambda *given: size)
    with cluster_decoder(request) as (decoder, made):
        assert len(made.plans) == size
        assert talk(engine_of(decoder)) == expected
        assert torch.equal(logits_of(decoder), logits)
