"""Which layers stay on disk, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from mrs.devices.disk import model_folder
from mrs.devices.expert_uses import remember_uses
from mrs.errors import DoesNotFit, Unsupported
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.suggestions import nearest_changes
from mrs.request import AdapterRequest, RunRequest
from mrs.topology import Topology, experts_on_cpu
from mrs.units import GIB
from support.model_files import SMALL_LLAMA, write_headers

PlannerOf = Callable[..., tuple[Planner, RunRequest]]


@pytest.mark.parametrize("memory_gib", [16, 48, 120])
def test_auto_leaves_the_fewest_layers_on_disk(
    planner_of: PlannerOf, llama_70b: Path, memory_gib: int
) -> None:
    def planned(disk_layers: object) -> Plan:
        planner, request = planner_of(
            llama_70b, f"cpu={memory_gib}GiB", disk_layers=disk_layers, isq="q8_0"
        )
        return planner.plan(request)

    plan = planned("auto")
    count = len(plan.on_disk.layouts)
    if memory_gib == 120:
        assert (count, plan.verdict, plan.disk_note) == (0, "fits", "")
        return
    assert plan.fits
    assert 0 < count < 80
    assert not planned(count - 1).fits
    assert plan.breakdowns[-1].needed_bytes <= memory_gib * GIB
    gaps = [after - before for before, after in pairwise(plan.on_disk.layouts)]
    assert max(gaps) - min(gaps) <= 1


def test_more_memory_is_faster(planner_of: PlannerOf, llama_70b: Path) -> None:
    rates = []
    for memory in ("12GiB", "24GiB", "32GiB", "64GiB"):
        planner, request = planner_of(llama_70b, f"cpu={memory}", disk_layers="auto", isq="q4k")
        plan = planner.plan(request)
        assert plan.fits
        rates.append(plan.speed.decode.expected)
    assert all(less < more for less, more in pairwise(rates))


def test_what_does_not_fit_otherwise_is_offered_from_disk(
    planner_of: PlannerOf, llama_70b: Path
) -> None:
    planner, request = planner_of(llama_70b, "cpu=12GiB")
    plan = planner.plan(request)
    with pytest.raises(DoesNotFit):
        plan.require_fit()
    last = nearest_changes(planner, request, plan)[-1]
    assert last.flags == "--disk-layers auto"
    assert "of 80 layers read from disk for each token" in last.effect
    assert last.plan.fits


def test_layers_of_an_accelerator_stay_there(planner_of: PlannerOf, llama_70b: Path) -> None:
    devices = "cuda:0=24GiB", "cpu=16GiB"
    planner, request = planner_of(llama_70b, *devices, disk_layers="auto", isq="q4k")
    plan = planner.plan(request)
    assert plan.fits
    on_cpu = {n for n, index in enumerate(plan.layer_devices) if index == 1}
    assert set(plan.on_disk.layouts) <= on_cpu
    assert plan.verdict.endswith(f"{len(plan.on_disk.layouts)} of 80 layers on disk")


def test_tables_alone_are_enough_where_little_is_missing(
    planner_of: PlannerOf, llama_70b: Path
) -> None:
    planner, request = planner_of(llama_70b, "cpu=500GiB", isq="q8_0")
    whole = planner.plan(request)
    missing_gib = (whole.breakdowns[-1].needed_bytes - GIB // 2) / GIB
    planner, request = planner_of(
        llama_70b, f"cpu={missing_gib:.2f}GiB", disk_layers="auto", isq="q8_0"
    )
    plan = planner.plan(request)
    assert plan.verdict == "fits with 1 table on disk"
    assert plan.speed.decode.expected > 0.95 * whole.speed.decode.expected


def test_what_no_gpu_has_room_for_is_offered_from_disk(
    planner_of: PlannerOf, llama_70b: Path
) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=24GiB", "cpu=16GiB")
    last = nearest_changes(planner, request, planner.plan(request))[-1]
    assert last.flags == "--disk-layers auto"
    assert last.plan.fits
    assert set(last.plan.layer_devices) == {0, 1}
    assert 0 < last.plan.speed.decode.expected < 1


def test_refusals(planner_of: PlannerOf, llama_70b: Path) -> None:
    cases = {
        "adapters": {"adapters": (AdapterRequest("x", "x", is_merged=False),)},
        "--calibration-file": {"calibration_file": "x", "isq": "q4k"},
    }
    for what, changes in cases.items():
        planner, request = planner_of(llama_70b, "cpu=500GiB", disk_layers=2, **changes)
        with pytest.raises(Unsupported, match=f"layers cannot stay on disk with {what}"):
            planner.plan(request)


MIXTURE = {
    **SMALL_LLAMA,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "head_dim": 128,
    "num_hidden_layers": 48,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


def test_experts_have_the_memory_that_is_left(planner_of: PlannerOf, tmp_path: Path) -> None:
    folder = write_headers(tmp_path / "mixture", MIXTURE)
    slots, rates = [], []
    for memory in ("6GiB", "10GiB", "20GiB"):
        planner, request = planner_of(folder, f"cpu={memory}", disk_layers="auto", isq="q8_0")
        plan = planner.plan(request)
        assert plan.verdict == "fits with 1 table and experts of 48 of 48 layers on disk"
        slots.append(plan.on_disk.expert_slots)
        rates.append(plan.speed.decode.expected)
        missed = 1 - slots[-1] / (48 * 128)
        expert = plan.on_disk.layouts[0].part_bytes
        assert plan.on_disk.read_bytes - plan.on_disk.row_bytes == pytest.approx(
            missed * 48 * 8 * expert, rel=1e-6
        )
    assert all(less < more for less, more in [*pairwise(slots), *pairwise(rates)])
    whole, request = planner_of(folder, "cpu=64GiB", disk_layers="auto", isq="q8_0")
    assert whole.plan(request).verdict == "fits"


#: Experts of 25 MiB, beside which attention is small.
WIDE_MIXTURE = {
    **MIXTURE,
    "hidden_size": 4096,
    "num_hidden_layers": 24,
    "moe_intermediate_size": 2048,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}


@pytest.fixture
def wide_mixture(tmp_path: Path) -> Path:
    return write_headers(tmp_path / "wide", WIDE_MIXTURE)


def test_experts_leave_an_accelerator_before_layers_do(
    planner_of: PlannerOf, wide_mixture: Path
) -> None:
    """As few as can be, and a reply is faster than with whole layers on the CPU."""
    apart = []
    for gib in (8, 12, 18, 40):
        planner, request = planner_of(wide_mixture, f"cuda:0={gib}GiB", "cpu=64GiB", isq="q8_0")
        plan = planner.plan(request)
        assert plan.fits
        assert set(plan.layer_devices) == {0}
        assert list(plan.expert_devices) == list(range(len(plan.expert_devices)))
        apart.append(len(plan.expert_devices))
        breakdown, of_layer = plan.breakdowns[0], 32 * 26 * 1024**2
        assert breakdown.available_bytes - breakdown.needed_bytes < 2 * of_layer or not apart[-1]
        if apart[-1]:
            assert plan.verdict == f"fits with experts of {apart[-1]} of 24 layers on the CPU"
            layers = f"0:{int(24 - apart[-1])}"
            whole = planner_of(
                wide_mixture,
                f"cuda:0={gib}GiB",
                "cpu=64GiB",
                isq="q8_0",
                layer_map=layers,
            )
            assert plan.speed.decode.expected > whole[0].plan(whole[1]).speed.decode.expected
    assert all(less < more for more, less in pairwise(apart))
    assert apart[-1] == 0


def test_three_memories_are_filled_by_one_rule(planner_of: PlannerOf, wide_mixture: Path) -> None:
    """The more memory the CPU has, the more experts are in it and the faster is a reply."""
    slots, rates = [], []
    for gib in (4, 8, 12):
        planner, request = planner_of(
            wide_mixture, "cuda:0=8GiB", f"cpu={gib}GiB", disk_layers="auto", isq="q8_0"
        )
        plan = planner.plan(request)
        assert plan.fits
        assert set(plan.layer_devices) == {0}
        assert plan.on_disk.layouts.keys() == plan.expert_devices.keys()
        slots.append(plan.on_disk.expert_slots)
        rates.append(plan.speed.decode.expected)
        assert all(each.needed_bytes <= each.available_bytes for each in plan.breakdowns)
    assert all(less < more for less, more in [*pairwise(slots), *pairwise(rates)])


def test_experts_stay_where_a_person_puts_them(planner_of: PlannerOf, wide_mixture: Path) -> None:
    found = Topology((experts_on_cpu(5),))
    for changes in ({"topology": found}, {"layer_map": "0:9"}):
        planner, request = planner_of(
            wide_mixture, "cuda:0=8GiB", "cpu=64GiB", isq="q8_0", **changes
        )
        experts = planner.plan(request).expert_devices
        assert len(experts) <= 5


def test_uses_of_earlier_runs_are_planned_with(
    planner_of: PlannerOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies are faster where few experts are used most; prompts use all, and are not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_headers(tmp_path / "mixture", MIXTURE)
    planner, request = planner_of(folder, "cpu=10GiB", disk_layers="auto", isq="q8_0")
    even = planner.plan(request)
    assert even.on_disk.hit_rate is None
    counts = [round(1e4 / (rank + 1)) for rank in range(128)]
    remember_uses(model_folder(request.source.model_id), dict.fromkeys(range(48), counts))
    skewed = planner.plan(request)
    slots = skewed.on_disk.expert_slots
    assert slots == even.on_disk.expert_slots
    most = sorted(48 * counts, reverse=True)[:slots]
    assert skewed.on_disk.hit_rate == pytest.approx(sum(most) / sum(48 * counts))
    assert skewed.on_disk.hit_rate > 1.5 * slots / (48 * 128)
    assert skewed.speed.decode.expected > 1.5 * even.speed.decode.expected
    prompts = [plan.speed.prompt_of(2048).expected for plan in (even, skewed)]
    assert prompts[0] == pytest.approx(prompts[1], rel=0.1)
    assert "by use of earlier runs" in skewed.disk_note
