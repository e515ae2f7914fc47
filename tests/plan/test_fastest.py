"""`fastest` against trying every placement."""

from __future__ import annotations

import json
from itertools import accumulate, combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.fastest import _Search, fastest
from mrs.plan.placement.fill import fill
from mrs.plan.placement.placement import Placement
from mrs.plan.placement.token_time import HOP_SECONDS, TokenReads, token_seconds
from support.demands import demand_and_devices

RESERVE = 512 * 1024**2
HOP = 1.0


def every_placement(problem):
    """All consecutive runs on all ordered subsets of the devices that hold them."""
    layers, kv, devices = problem["layer_bytes"], problem["kv_bytes_per_layer"], problem["devices"]
    count = len(layers)
    for used in range(1, len(devices) + 1):
        for order in permutations(range(len(devices)), used):
            for cuts in combinations(range(1, count), used - 1):
                edges = [0, *cuts, count]
                runs = [(d, b - a) for d, a, b in zip(order, edges[:-1], edges[1:], strict=True)]
                for (d, n), a in zip(runs, edges, strict=False):
                    held = sum(layers[a : a + n]) + kv * n + problem["mapped_act_bytes"]
                    if a == 0:
                        held += problem["non_mapped_bytes"] - problem["mapped_act_bytes"]
                        held += max(problem["mapped_act_bytes"], problem["non_mapped_act_bytes"])
                    if held > devices[d].usable_bytes:
                        break
                else:
                    yield Placement(runs)


def reads_of(problem) -> TokenReads:
    kv = problem["kv_bytes_per_layer"]
    return TokenReads([w + kv for w in problem["layer_bytes"]], problem["non_mapped_bytes"])


def placed(problem, speeds, hop_seconds=HOP) -> Placement:
    return fastest(*demand_and_devices(**problem), speeds, reads_of(problem), hop_seconds)


@st.composite
def problems(draw, *, equal_gpus: bool):
    count = draw(st.integers(1, 6))
    gpus = draw(st.integers(1, 3))
    room = st.integers(0, 120)
    speed = st.sampled_from([1.0, 2.0, 5.0])
    if equal_gpus:
        room, speed = st.just(draw(room)), st.just(draw(speed))
    devices = [DeviceMemory("cuda", i, RESERVE + draw(room)) for i in range(gpus)]
    speeds = [draw(speed) for _ in range(gpus)]
    if draw(st.booleans()):
        devices.append(DeviceMemory("cpu", 0, draw(st.sampled_from([60, 1000]))))
        speeds.append(0.5)
    problem = {
        "layer_bytes": draw(st.lists(st.integers(1, 40), min_size=count, max_size=count)),
        "non_mapped_bytes": draw(st.integers(0, 40)),
        "kv_bytes_per_layer": draw(st.integers(0, 10)),
        "mapped_act_bytes": draw(st.integers(0, 10)),
        "non_mapped_act_bytes": draw(st.integers(0, 10)),
        "devices": devices,
    }
    return problem, speeds


@settings(max_examples=120, deadline=None, derandomize=True)
@given(problems(equal_gpus=False))
def test_nothing_is_faster_and_nothing_as_fast_uses_fewer_devices(drawn):
    problem, speeds = drawn
    reads = reads_of(problem)
    timed = [
        (token_seconds(p, reads, speeds, HOP), len(p.layers)) for p in every_placement(problem)
    ]
    try:
        found = placed(problem, speeds)
    except DoesNotFit as error:
        assert not timed
        assert error.missing_bytes > 0  # noqa: PT017
        return
    seconds = token_seconds(found, reads, speeds, HOP)
    best = min(time for time, _ in timed)
    assert seconds == pytest.approx(best, rel=1e-8)
    assert len(found.layers) == min(n for time, n in timed if time <= best * (1 + 1e-9))
    assert found.layers in [p.layers for p in every_placement(problem)]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(problems(equal_gpus=True))
def test_on_equal_gpus_it_is_never_slower_than_fill(drawn):
    problem, speeds = drawn
    try:
        filled = fill(*demand_and_devices(**problem))
    except DoesNotFit:
        return
    if filled.first_device != 0:
        return  # fill charges nobody for the non-mapped part once the first device is skipped
    found = placed(problem, speeds)
    reads = reads_of(problem)
    fill_seconds = token_seconds(filled, reads, speeds, HOP)
    assert token_seconds(found, reads, speeds, HOP) <= fill_seconds * (1 + 1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems(equal_gpus=False), st.integers(0, 3), st.integers(1, 60))
def test_more_memory_is_never_slower(drawn, which, more):
    problem, speeds = drawn
    devices = list(problem["devices"])
    try:
        before = placed(problem, speeds)
    except DoesNotFit:
        return
    old = devices[which % len(devices)]
    devices[which % len(devices)] = DeviceMemory(old.kind, old.ordinal, old.available_bytes + more)
    grown = {**problem, "devices": devices}
    after = placed(grown, speeds)
    reads = reads_of(problem)
    assert token_seconds(after, reads, speeds, HOP) <= token_seconds(before, reads, speeds, HOP) * (
        1 + 1e-9
    )


def test_one_card_that_does_is_not_shared_and_the_slow_one_idles():
    devices = [DeviceMemory("cuda", i, RESERVE + 1000) for i in range(2)]
    devices.append(DeviceMemory("cpu", 0, 10_000))
    model = {
        "layer_bytes": [10] * 8,
        "non_mapped_bytes": 20,
        "kv_bytes_per_layer": 1,
        "mapped_act_bytes": 5,
        "non_mapped_act_bytes": 5,
        "devices": devices,
    }
    assert placed(model, [300.0, 900.0, 50.0], HOP_SECONDS).layers == [(1, 8)]
    assert placed(model, [900.0, 300.0, 50.0], HOP_SECONDS).layers == [(0, 8)]


def test_eight_equal_gpus_and_a_cpu_are_searched_quickly():
    devices = [DeviceMemory("cuda", i, RESERVE + 12) for i in range(8)]
    devices.append(DeviceMemory("cpu", 0, 10_000))
    model = {
        "layer_bytes": [1] * 126,
        "non_mapped_bytes": 0,
        "kv_bytes_per_layer": 0,
        "mapped_act_bytes": 0,
        "non_mapped_act_bytes": 0,
        "devices": devices,
    }
    found = placed(model, [100.0] * 8 + [1.0], 0.0)
    assert sum(n for i, n in found.layers if i < 8) == 96


def test_the_work_for_sixteen_different_gpus_is_bounded(monkeypatch):
    tries = 0
    extend = _Search._extend

    def counted(*args, **kwargs):
        nonlocal tries
        tries += 1
        assert tries < 100_000
        return extend(*args, **kwargs)

    monkeypatch.setattr(_Search, "_extend", counted)
    devices = [DeviceMemory("cuda", i, RESERVE + 70 + 3 * i) for i in range(16)]
    model = {
        "layer_bytes": [9 + (i % 3) + (i % 5) for i in range(80)],
        "non_mapped_bytes": 20,
        "kv_bytes_per_layer": 1,
        "mapped_act_bytes": 5,
        "non_mapped_act_bytes": 5,
        "devices": devices,
    }
    found = placed(model, [900.0] * 16, HOP_SECONDS)
    needed = sum(model["layer_bytes"]) + 80
    room = sorted((device.usable_bytes - 5 for device in devices), reverse=True)
    assert len(found.layers) == next(n for n in range(17) if sum(room[:n]) >= needed + 20)


LAYOUTS = json.loads((Path(__file__).parent / "vectors" / "ollama_create_layout.json").read_text())


def laid_out(case, *, with_cpu: bool) -> list[tuple[str, list[int]]]:
    """The published question put to `fastest`, its answer in the published form, GPUs only."""
    free = case["gpus_free_mib_excl_min"]
    devices = [DeviceMemory("cuda", i, RESERVE + size * 1024**2) for i, size in enumerate(free)]
    devices += [DeviceMemory("cpu", 0, 10**9)] if with_cpu else []
    model = {
        "layer_bytes": [size * 1024**2 for size in case["layers_mib"]],
        "non_mapped_bytes": 0,
        "kv_bytes_per_layer": 0,
        "mapped_act_bytes": 0,
        "non_mapped_act_bytes": 0,
        "devices": devices,
    }
    found = placed(model, [5e11] * len(free) + [5e10] * with_cpu, HOP_SECONDS)
    edges = accumulate((count for _, count in found.layers), initial=0)
    return [
        (f"gpu{device}", list(range(start, start + count)))
        for (device, count), start in zip(found.layers, edges, strict=False)
        if device < len(free)
    ]


@pytest.mark.parametrize(
    "case",
    [c for c in LAYOUTS["cases"] if c["num_gpu"] == -1 and "libraries" not in c],
    ids=lambda case: case["name"],
)
def test_published_layouts(case):
    """Another planner's answers, which ours must equal where everything fits on GPUs.

    That one keeps the last layers on a GPU and ours the first, or any that are faster; so where
    layers are left over ours must only put as many bytes on GPUs. Cases with a given number of
    layers, or GPUs that cannot work together, ask what this strategy is not asked.
    """
    if case["expect_err"]:
        with pytest.raises(DoesNotFit):
            laid_out(case, with_cpu=False)
        return
    expected = [(gpu, layers) for gpu, layers in case["expect"]]
    found = laid_out(case, with_cpu=True)
    if sum(len(layers) for _, layers in expected) == len(case["layers_mib"]):
        assert found == expected

    def on_gpus(runs: list[tuple[str, list[int]]]) -> int:
        return sum(case["layers_mib"][layer] for _, layers in runs for layer in layers)

    assert on_gpus(found) >= on_gpus(expected)
