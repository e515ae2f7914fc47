"""Suggested changes of a request, and the largest values with which a model fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mrs.devices.parse import what_if_devices
from mrs.plan.memory import overhead
from mrs.plan.placement.placement import Placement
from mrs.plan.report.conversations import conversations_at_once
from mrs.plan.report.remedies import remedies, with_host
from mrs.plan.report.search import best_format, planned_formats
from mrs.plan.report.suggestions import nearest_changes
from mrs.request import PagedRequest


@pytest.fixture(autouse=True)
def _cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are as large as they must be with torch's CPU build."""
    monkeypatch.setattr(overhead, "_torch_has_cuda", lambda: False)


def test_no_spill(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=80GiB", "cpu=256GiB", cpu_spill=False)
    plan = planner.plan(request)
    assert not plan.fits
    assert plan.spilled_layers == 0
    assert [change.flags for change in nearest_changes(planner, request, plan)] == [
        "--isq q8_0",
        "without --no-cpu-spill",
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("devices", "wishes"),
    [
        (["cpu=790MiB"], {}),
        (["cpu=1240MiB"], {"max_seq_len": 32768}),
        (["cuda:0=1400MiB", "cpu=8GiB"], {"max_seq_len": 32768}),
        (["cuda:0=1400MiB", "cpu=8GiB"], {"max_seq_len": 8192, "max_batch_size": 8}),
        (["cpu=1240MiB"], {"dtype": "f32"}),
    ],
)
def test_advice_holds(small_llama: Path, planner_of, devices, wishes) -> None:
    """Each change alone makes the plan fit, or leaves the CPU out, and the next step would not."""
    planner, request = planner_of(small_llama, *devices, **wishes)
    plan = planner.plan(request)
    assert not plan.fits or plan.spilled_layers
    changes = nearest_changes(planner, request, plan)
    assert 1 <= len(changes) <= 3
    flags = {"--max-seq-len": ("max_seq_len", 256), "--max-batch-size": ("max_batch_size", 1)}
    for change in changes:
        assert change.plan.fits
        assert not plan.fits or not change.plan.spilled_layers
        name, _, value = change.flags.partition(" ")
        if name in flags:
            field, step = flags[name]
            more, request = planner_of(
                small_llama, *devices, **{**wishes, field: int(value) + step}
            )
            worse = more.plan(request)
            assert not worse.fits or worse.spilled_layers


def test_room_to_grow(small_llama: Path, planner_of) -> None:
    planner, request = planner_of(small_llama, "cpu=1540MiB")
    plan = planner.plan(request)
    (change,) = nearest_changes(planner, request, plan)
    tokens = int(change.flags.split()[1])
    assert change.plan.fits
    assert 4096 < tokens < 32768
    planner, request = planner_of(small_llama, "cpu=1540MiB", max_seq_len=tokens + 256)
    assert not planner.plan(request).fits


def test_where_no_flag_is_enough_other_machines_are_named(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "RTX 4090", cpu_spill=False)
    planner = planner.on(with_host(planner.devices))
    more, with_cpu = nearest_changes(planner, request, planner.plan(request))
    assert more.flags == '--isq q4k --device "2x RTX 4090"'
    assert with_cpu.flags.startswith('--isq q4k --device "RTX 4090" --device "cpu=')
    assert more.plan.fits
    assert with_cpu.plan.fits
    assert not more.plan.spilled_layers


def test_the_fewest_cards_that_are_enough(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "H100", "cpu=16GiB", cpu_spill=False)
    (more, *_) = remedies(planner, request)
    assert more.machine == "2x H100"
    planner, request = planner_of(llama_70b, "RTX 3060", "cpu=16GiB", cpu_spill=False)
    (more, *_) = remedies(planner, request)
    count = int(more.machine.partition("x")[0])
    fewer = planner.on(with_host(what_if_devices([f"{count - 1}x RTX 3060"])))
    assert more.plan.fits
    assert not fewer.plan(request).fits


def test_a_cpu_gets_more_memory_whether_or_not_layers_may_leave_it(
    llama_70b: Path, planner_of
) -> None:
    for cpu_spill in (True, False):
        planner, request = planner_of(llama_70b, "cpu=16GiB", isq="q4k", cpu_spill=cpu_spill)
        (more,) = remedies(planner, request)
        assert more.machine == "cpu=64GiB"
        assert more.plan.fits
    planner, request = planner_of(llama_70b, "RTX 4090", "RTX 3090", "cpu=1GiB", isq="q8_0")
    assert not list(remedies(planner, request)), "of several kinds"


def test_unified_memory_gets_a_larger_computer(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "M2 Pro 32GB", "cpu=16GiB", cpu_spill=False, isq="q4k")
    (larger,) = remedies(planner, request)
    assert larger.machine == "Apple M1 Ultra 64GB"
    assert larger.plan.fits


@pytest.mark.parametrize(
    ("devices", "wishes"),
    [
        (["cpu=900MiB"], {}),
        (["cuda:0=1400MiB", "cpu=1GiB"], {"max_seq_len": 2048, "max_batch_size": 2}),
        (["cuda:0=1100MiB", "cuda:1=1300MiB", "cpu=1GiB"], {"isq": "q8_0", "dtype": "f32"}),
        (["cpu=400MiB"], {}),
        (["cuda:0=1050MiB", "cpu=1GiB"], {"max_seq_len": 64}),
    ],
)
def test_conversations_at_once(small_llama: Path, planner_of, devices, wishes) -> None:
    """Compared with trying all counts in order, with the same layers and free memory."""
    planner, request = planner_of(small_llama, *devices, paged=PagedRequest(pool=False), **wishes)
    plan = planner.plan(request)
    count = plan.workload.batch if plan.fits else 0
    while plan.fits and count < 200:
        more = replace(request, max_batch_size=count + 1)
        planned = planner.plan(more, Placement(plan.runs))
        if not planned.fits or min(terms.free_bytes for terms in planned.breakdowns) < 0:
            break
        count += 1
    assert count < 200
    assert conversations_at_once(planner, request, plan) == count


@pytest.mark.full
def test_the_best_format_loses_little_and_leaves_the_cpu_out_or_is_the_fastest(
    llama_70b: Path, planner_of
) -> None:
    for memory, best in (("96GiB", "q8_0"), ("60GiB", "q6k"), ("24GiB", "q4k"), ("12GiB", "q4k")):
        planner, request = planner_of(llama_70b, f"cuda:0={memory}", "cpu=256GiB")
        tried = list(planned_formats(planner, request))
        found, _ = best_format(tried) or ("", None)
        assert found == best
        fitting = [(isq, plan) for isq, plan in tried if plan.fits]
        rates = [plan.speed.decode.expected for _, plan in fitting if plan.spilled_layers]
        assert rates == sorted(rates), "the fewer bytes, the fewer layers on the CPU"
        good = [(isq, plan) for isq, plan in fitting if isq not in ("q3k", "q2k")]
        finest = [isq for isq, plan in good if not plan.spilled_layers] or ["q4k"]
        assert found == finest[0]


def test_changes_without_the_cpu_come_first_and_then_the_fastest(
    small_llama: Path, planner_of
) -> None:
    planner, request = planner_of(
        small_llama, "cuda:0=1200MiB", "cpu=2370MiB", max_seq_len=16384, max_batch_size=8
    )
    plan = planner.plan(request)
    assert not plan.fits
    changes = nearest_changes(planner, request, plan)
    ranks = [(c.plan.spilled_layers > 0, -c.plan.speed.decode.low) for c in changes]
    assert len(changes) > 1
    assert ranks == sorted(ranks)


def test_an_unavoidable_spill_is_made_faster(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=12GiB", "cpu=256GiB")
    plan = planner.plan(request)
    assert plan.fits
    (change,) = nearest_changes(planner, request, plan)
    assert change.flags == "--isq q4k"
    assert change.plan.speed.decode > plan.speed.decode
