"""Plans over machines, against every placement of small cases."""

from __future__ import annotations

import pytest

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.machine import LINK_LATENCY_S, parse_machines
from mrs.errors import UsageError
from mrs.plan.machines import MachinesPlan, plan_machines
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from support.model_files import SMALL_LLAMA, write_headers

LAYERS = 6


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> ModelLoader:
    config = {**SMALL_LLAMA, "num_hidden_layers": LAYERS}
    folder = write_headers(tmp_path_factory.mktemp("model"), config)
    return ModelLoader(RunRequest(ModelSource(str(folder), "safetensors"), cpu=True))


def made(loader: ModelLoader, *texts: str) -> MachinesPlan:
    return plan_machines(loader.planner, loader.request, parse_machines(texts))


def test_a_machine_that_suffices_is_alone(loader: ModelLoader) -> None:
    """Hops only make one sequence slower."""
    plan = made(loader, "a=cpu=64GiB,bandwidth=50GB/s", "b=cpu=64GiB,bandwidth=50GB/s")
    assert [(each.machine, each.layers) for each in plan.stages] == [("a", range(LAYERS))]
    assert plan.unused == ("b",)
    assert plan.hop_seconds == 0


def test_a_much_faster_machine_takes_what_fits(loader: ModelLoader) -> None:
    slow, fast = "a=cpu=64GiB,bandwidth=1GB/s", "b=cpu=64GiB,bandwidth=500GB/s"
    plan = made(loader, slow, fast)
    assert [each.machine for each in plan.stages][-1] == "b"
    assert len(plan.stages[-1].layers) >= LAYERS - 1
    by_slow_link = made(loader, slow, f"{fast},link=1kbit/s")
    assert [each.machine for each in by_slow_link.stages] == ["a"]


def test_hops_cost_latency_and_rate(loader: ModelLoader) -> None:
    plan = made(loader, "a=cpu=64GiB,bandwidth=1GB/s", "b=cpu=64GiB,bandwidth=500GB/s,link=1Gbit/s")
    hidden_bytes = 4 * SMALL_LLAMA["hidden_size"]
    assert plan.hop_seconds == pytest.approx(2 * (LINK_LATENCY_S + hidden_bytes / 125e6))
    total = sum(each.seconds for each in plan.stages) + plan.hop_seconds
    assert plan.token_seconds == pytest.approx(total)


def test_the_latency_of_a_link_can_be_given(loader: ModelLoader) -> None:
    slow, fast = "a=cpu=64GiB,bandwidth=1GB/s", "b=cpu=64GiB,bandwidth=500GB/s,latency=0.5us"
    hidden_bytes = 4 * SMALL_LLAMA["hidden_size"]
    assert made(loader, f"{slow},latency=0.1us", fast).hop_seconds == pytest.approx(
        2 * (5e-7 + hidden_bytes / 125e6)
    )
    assert made(loader, slow, fast.replace("us", "s")).unused == ("b",)


def test_machines_that_are_too_small_together_are_refused(loader: ModelLoader) -> None:
    plan = made(loader, "a=cpu=500MiB", "b=cpu=400MiB")
    assert not plan.stages
    assert plan.missing_bytes > 0


def test_memory_is_respected(loader: ModelLoader) -> None:
    """A model that fits nowhere alone is split, and no device is overfull."""
    whole = made(loader, "a=cpu=64GiB").stages[0]
    needed = 64 * 2**30 - whole.free_bytes
    size = f"{(needed - whole.weight_bytes // 3) >> 20}MiB"
    plan = made(loader, f"a=cpu={size}", f"b=cpu={size}", f"c=cpu={size}")
    assert len(plan.stages) == 2
    assert plan.unused == ("c",)
    assert all(each.free_bytes >= 0 for each in plan.stages)
    assert [n for each in plan.stages for n in each.layers] == list(range(LAYERS))


@pytest.mark.parametrize(
    "text",
    [
        "big",
        "big=",
        "cuda:0=24GiB",
        "a=cpu",
        "a=cpu=1GiB,link=fast",
        "a=cpu=1GiB,x=1",
        "a=link=1Gbit/s",
    ],
)
def test_bad_texts_are_quoted(text: str) -> None:
    with pytest.raises(UsageError):
        parse_machines([text])


def test_a_machine_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="a is given twice"):
        parse_machines(["a=cpu=1GiB", "a=cpu=2GiB"])


def test_options_belong_to_their_device() -> None:
    (machine,) = parse_machines(["a=cuda:0=24GiB,bandwidth=900GB/s,cpu=64GiB,link=10Gbit/s"])
    assert [device.label for device in machine.devices] == ["cuda:0", "cpu"]
    assert bandwidth_of(machine.devices[0]) == 900e9
    assert machine.link_bytes_per_s == 1.25e9
