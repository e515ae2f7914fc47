"""Whether processes should share layers: cases whose best answer is computed by hand.

One sequence takes R seconds on one device, R / n + (2 L + 2) t on n that share L layers and add up
in t seconds. For n = 2 sharing pays if R > 4 (L + 1) t. Many sequences are at most as slow as the
slowest stage, without sums.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrs.devices.device import Device
from mrs.devices.machine import Machine, parse_machines
from mrs.errors import UsageError
from mrs.plan.machine_units import Process, ShardDemand, Unit, largest_group, units_of
from mrs.plan.machines import MachinesPlan, _best, _group_sizes, plan_machines
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from support.model_files import SMALL_LLAMA, write_headers

LAYERS, SUM_S = 32, 1e-4
GIB = 2**30


def card(number: int, free_bytes: int = 100 * GIB) -> Device:
    return Device("cuda", number, "card", free_bytes, free_bytes, f"cuda:{number}")


def unit(machine: Machine, devices: list[Device], seconds: float, size_bytes: int = 320) -> Unit:
    """The devices share a model that one of them reads in so many seconds, without a head."""
    share = len(devices)
    layer_bytes = [size_bytes // LAYERS // share] * LAYERS
    reads = [seconds / LAYERS / share] * LAYERS
    demand = ShardDemand(layer_bytes, layer_bytes, reads, 0, 0.0, 0)
    processes = [Process(each, 1.0, demand) for each in devices]
    return Unit(machine, processes, SUM_S if share > 1 else 0.0)


def best(*units: list[Unit], is_for_many: bool = False) -> MachinesPlan:
    found = _best(units, 0, is_for_many=is_for_many)
    assert found is not None
    return found


@pytest.mark.parametrize(("seconds", "is_shared"), [(0.0130, False), (0.0134, True)])
def test_two_cards_share_layers_above_the_threshold(seconds: float, is_shared: bool) -> None:
    """4 (32 + 1) 0.1 ms = 13.2 ms."""
    machine = Machine("a", [card(0), card(1)])
    alone = best([unit(machine, [card(0)], seconds), unit(machine, [card(1)], seconds)])
    shared = best([unit(machine, [card(0), card(1)], seconds)])
    assert alone.token_seconds == pytest.approx(seconds)
    assert shared.token_seconds == pytest.approx(seconds / 2 + 66 * SUM_S)
    assert (shared.token_seconds < alone.token_seconds) == is_shared


def test_many_sequences_need_no_sums() -> None:
    machine = Machine("a", [card(0), card(1)])
    alone = best(
        [unit(machine, [card(0)], 0.032), unit(machine, [card(1)], 0.032)], is_for_many=True
    )
    shared = best([unit(machine, [card(0), card(1)], 0.032)], is_for_many=True)
    assert [each.layers for each in alone.stages] == [range(16), range(16, 32)]
    assert alone.most_tokens_per_s == pytest.approx(1 / 0.016)
    assert shared.most_tokens_per_s == pytest.approx(1 / (0.016 + 66 * SUM_S))


def test_stages_of_groups_over_two_machines() -> None:
    """No machine has memory for more than half of the model: 64 ms on one card at a time."""
    small = [card(0, GIB), card(1, GIB)]
    machines = [Machine(name, small, 1e9, 1e-3) for name in "ab"]
    size_bytes = 4 * (GIB - 512 * 2**20)
    stages = best(*([unit(m, [each], 0.064, size_bytes) for each in small] for m in machines))
    both = best(*([unit(m, small, 0.064, size_bytes)] for m in machines))
    assert stages.token_seconds == pytest.approx(0.064 + 2 * 1e-3 + 20e-6 + 20e-6, rel=1e-3)
    assert [each.machine for each in both.stages] == ["a", "b"]
    # 2 * 16 + 2 sums in the first stage, 2 * 16 + 1 in the second
    assert both.token_seconds == pytest.approx(0.032 + 67 * SUM_S + 2e-3)
    assert both.hop_seconds == pytest.approx(2e-3)


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> ModelLoader:
    folder = write_headers(
        tmp_path_factory.mktemp("model"), {**SMALL_LLAMA, "num_hidden_layers": 6}
    )
    return ModelLoader(RunRequest(ModelSource(str(folder), "safetensors"), cpu=True))


def made(loader: ModelLoader, *texts: str, batch: int = 1, **changes: object) -> MachinesPlan:
    machines = [replace(each, **changes) for each in parse_machines(texts)]  # type: ignore[arg-type]
    request = replace(loader.request, max_batch_size=batch)
    return plan_machines(loader.planner, request, machines)


def test_one_memory_controller_is_not_shared(loader: ModelLoader) -> None:
    plan = made(loader, "a=cpu=64GiB,bandwidth=50GB/s")
    assert (plan.group_size, [each.group_size for each in plan.choices]) == (1, [1])
    assert plan.stages[0].processes == 1


def test_two_memory_nodes_are_shared_if_sums_are_fast(loader: ModelLoader) -> None:
    """Six layers: 14 sums against half of the time."""
    text = "a=cpu=64GiB,bandwidth=50GB/s,nodes=2"
    plan = made(loader, text, sum_s=2e-5)
    alone, shared = plan.choices
    assert plan.group_size == 2
    assert plan.stages[0].processes == 2
    assert plan.token_seconds == shared.token_seconds < alone.token_seconds
    # norms are in both processes, and cached keys and values in one of them
    assert shared.token_seconds == pytest.approx(alone.token_seconds / 2 + 14 * 2e-5, rel=0.02)
    slow = made(loader, text, sum_s=alone.token_seconds / 28)
    assert slow.group_size == 1
    assert slow.token_seconds == pytest.approx(alone.token_seconds)


def test_several_sequences_choose_stages(loader: ModelLoader) -> None:
    cards = "a=cuda:0=24GiB,bandwidth=100GB/s,cuda:1=24GiB,bandwidth=100GB/s"
    one, many = made(loader, cards, sum_s=1e-4), made(loader, cards, sum_s=1e-4, batch=8)
    assert (one.group_size, many.group_size) == (2, 1)
    assert one.stages[0].device == "cuda:0 and cuda:1"
    assert [each.device for each in many.stages] == ["cuda:0", "cuda:1"]
    assert many.is_for_many


def test_a_head_without_such_groups_says_so(loader: ModelLoader) -> None:
    plan = made(loader, "a=cpu=64GiB", "b=cuda:0=24GiB,cuda:1=24GiB")
    refused = plan.choices[1]
    assert "too few devices" in refused.refusal
    assert plan.group_size == 1


def test_a_model_that_cannot_be_shared_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    config = {**SMALL_LLAMA, **heads, "num_hidden_layers": 2}
    folder = write_headers(tmp_path_factory.mktemp("model"), config)
    loader = ModelLoader(RunRequest(ModelSource(str(folder), "safetensors"), cpu=True))
    plan = made(loader, "a=cpu=64GiB,bandwidth=50GB/s,nodes=2")
    assert "2 processes cannot share 1 head" in plan.choices[1].refusal
    assert plan.group_size == 1


def test_memory_of_processes_on_one_cpu_counts_together(loader: ModelLoader) -> None:
    (machine,) = parse_machines(["a=cpu=64GiB,nodes=2"])
    (pair,) = units_of(loader.planner, loader.request, machine, 2)
    (pool,) = pair.pools
    free_bytes = 64 * GIB - sum(each.demand.fixed_bytes for each in pair.processes)
    assert pool.free_bytes == free_bytes
    weights = sum(sum(each.demand.memory) + each.demand.head_bytes for each in pair.processes)
    assert pool.left(range(6), is_first=True) == free_bytes - weights


def test_sizes_of_groups() -> None:
    machine = Machine("a", [card(n) for n in range(6)])
    assert largest_group(machine) == 6
    assert _group_sizes([machine, Machine("b", [card(0)])]) == [2, 4, 6]
    assert _group_sizes([Machine("b", [card(0)])]) == []
    with pytest.raises(UsageError, match="no number of nodes"):
        parse_machines(["a=cpu=64GiB,nodes=0"])
    with pytest.raises(UsageError, match="no number of nodes"):
        parse_machines([f"a=cpu=64GiB,nodes={9:9<5000}"])
