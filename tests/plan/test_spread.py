"""`spread` against published results of the estimator that it follows, and its invariants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.round_robin import GpuDemand, GpuMemory, estimate_gpu_layers, predict_fit
from mrs.plan.placement.spread import spread
from support.demands import demand_and_devices
from support.suites import examples

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "ollama_estimate_gpu_layers.json").read_text()
)
CONSTANTS = VECTORS["derived_constants"]
RESERVE = 512 * 1024**2
MODEL = {
    "layer_bytes": [4] * 5,
    "output_bytes": CONSTANTS["memory_layer_output"],
    "kv_bytes_total": CONSTANTS["kv_total"],
    "graph_partial_bytes": CONSTANTS["graph_partial"],
    "graph_full_bytes": CONSTANTS["graph_full"],
    "projector_bytes": 0,
    "projector_graph_bytes": 0,
    "overhead_bytes": 0,
}
NEEDED = GpuDemand(**MODEL)


def cuda(*free: int) -> list[GpuMemory]:
    return [GpuMemory("cuda", size, CONSTANTS["gpu_minimum_memory"]) for size in free]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: str(case["space"]))
def test_published_estimates(case):
    estimate = estimate_gpu_layers(NEEDED, cuda(*case["free"]))
    assert estimate.layers == case["expect_layers"]
    assert estimate.tensor_split == case["expect_tensor_split"]
    derived = case["derived"]
    assert estimate.gpu_bytes == derived["gpu_sizes"]
    assert estimate.vram_bytes == derived["vram"] == sum(estimate.gpu_bytes)
    assert estimate.total_bytes == derived["total"]
    assert estimate.graph_bytes == derived["graph"]
    assert (estimate.layers < 6) == (estimate.vram_bytes < estimate.total_bytes)


def test_cpu_takes_no_gpu_layers():
    estimate = estimate_gpu_layers(NEEDED, [GpuMemory("cpu", 10**12, 0)])
    assert estimate.layers == VECTORS["cpu_case"]["expect_layers"]
    assert estimate.graph_bytes == VECTORS["cpu_case"]["expect_graph"]
    assert estimate.total_bytes > 0


@pytest.mark.parametrize(("requested", "layers"), [(0, 0), (3, 3), (6, 6), (99, 6)])
def test_requested_layers_are_a_limit(requested, layers):
    estimate = estimate_gpu_layers(NEEDED, cuda(10**12), requested_layers=requested)
    assert estimate.layers == layers
    assert estimate.tensor_split == ""


def test_graph_of_one_gpu_depends_on_whether_all_fits():
    whole = estimate_gpu_layers(NEEDED, cuda(10**12))
    part = estimate_gpu_layers(NEEDED, cuda(10**12), requested_layers=2)
    metal = estimate_gpu_layers(NEEDED, [GpuMemory("metal", 10**12, 0)], requested_layers=2)
    assert whole.graph_bytes == CONSTANTS["graph_full"]
    assert part.graph_bytes == CONSTANTS["graph_partial"]
    assert metal.graph_bytes == CONSTANTS["graph_full"]


def test_projector_and_overhead_belong_to_the_first_gpu_with_room():
    model = {**MODEL, "projector_bytes": 700, "projector_graph_bytes": 300, "overhead_bytes": 50}
    estimate = estimate_gpu_layers(GpuDemand(**model), cuda(0, 10**12, 10**12))
    plain = estimate_gpu_layers(NEEDED, cuda(0, 10**12, 10**12))
    assert [a - b for a, b in zip(estimate.gpu_bytes, plain.gpu_bytes, strict=True)] == [0, 1000, 0]


def test_everything_fits_on_one_library_or_something_must_go():
    room = VECTORS["cases"][4]["free"]
    assert predict_fit(NEEDED, cuda(*room)) == (True, 639639584)
    tight = VECTORS["cases"][3]["free"]
    assert predict_fit(NEEDED, cuda(*tight)) == (False, 572530708)
    assert predict_fit(NEEDED, cuda(*tight), requested_layers=3).fits
    assert predict_fit(NEEDED, []) == (False, 0)


def test_libraries_are_tried_one_after_the_other():
    half = VECTORS["cases"][3]["free"][1]
    mixed = [GpuMemory("rocm", half, 2048), *cuda(10**12)]
    assert predict_fit(NEEDED, mixed).fits
    assert not predict_fit(NEEDED, [GpuMemory("rocm", half, 2048), *cuda(half)]).fits


@st.composite
def problems(draw, *, equal_layers: bool):
    count = draw(st.integers(1, 12))
    size = st.just(draw(st.integers(1, 40))) if equal_layers else st.integers(1, 40)
    layers = draw(st.lists(size, min_size=count, max_size=count))
    rooms = draw(st.lists(st.integers(0, 200), min_size=1, max_size=4))
    devices = [DeviceMemory("cuda", i, RESERVE + room) for i, room in enumerate(rooms)]
    devices.append(DeviceMemory("cpu", 0, 10**6))
    return {
        "layer_bytes": layers,
        "non_mapped_bytes": draw(st.integers(0, 60)),
        "kv_bytes_per_layer": draw(st.integers(0, 10)),
        "mapped_act_bytes": draw(st.integers(0, 20)),
        "non_mapped_act_bytes": draw(st.integers(0, 20)),
        "devices": devices,
    }


@examples(core=100, full=1_000)
def test_every_layer_once_in_order_and_no_device_above_its_capacity(num_examples: int) -> None:
    tried = settings(max_examples=num_examples, deadline=None, derandomize=True)
    tried(given(problems(equal_layers=False))(check_placement))()


def check_placement(problem):
    placement = spread(*demand_and_devices(**problem))
    layers, kv = problem["layer_bytes"], problem["kv_bytes_per_layer"]
    assert len(placement.layer_devices) == len(layers)
    assert placement.layer_devices == sorted(placement.layer_devices)
    start = 0
    for index, count in placement.layers:
        held = sum(layers[start : start + count]) + kv * count + problem["mapped_act_bytes"]
        if index == placement.first_device:
            held += problem["non_mapped_bytes"]
        assert held <= problem["devices"][index].usable_bytes
        start += count


@examples(core=100, full=1_000)
def test_more_memory_never_means_fewer_layers_on_gpus(num_examples: int) -> None:
    tried = settings(max_examples=num_examples, deadline=None, derandomize=True)
    drawn = given(problems(equal_layers=True), st.integers(0, 3), st.integers(1, 100))
    tried(drawn(check_growth))()


def check_growth(problem, which, more):
    devices = problem["devices"]
    index = which % (len(devices) - 1)
    grown = list(devices)
    grown[index] = DeviceMemory("cuda", index, devices[index].available_bytes + more)

    def on_gpus(placement):
        return sum(n for i, n in placement.layers if devices[i].kind != "cpu")

    before = spread(*demand_and_devices(**problem))
    after = spread(*demand_and_devices(**{**problem, "devices": grown}))
    assert on_gpus(after) >= on_gpus(before)


def test_layers_are_shared_out_not_piled_up():
    devices = [DeviceMemory("cuda", i, RESERVE + 1000) for i in range(4)]
    model = {
        "layer_bytes": [10] * 8,
        "non_mapped_bytes": 20,
        "kv_bytes_per_layer": 1,
        "mapped_act_bytes": 5,
        "non_mapped_act_bytes": 5,
    }
    assert spread(*demand_and_devices(**model, devices=devices)).layers == [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 2),
    ]


def test_room_held_back_by_the_estimate_is_used_before_giving_up():
    exact = RESERVE + 20 + 5 + 8 * 11
    model = {
        "layer_bytes": [10] * 8,
        "non_mapped_bytes": 20,
        "kv_bytes_per_layer": 1,
        "mapped_act_bytes": 5,
        "non_mapped_act_bytes": 5,
    }
    assert spread(
        *demand_and_devices(**model, devices=[DeviceMemory("metal", 0, exact)])
    ).layers == [(0, 8)]
    with pytest.raises(DoesNotFit):
        spread(*demand_and_devices(**model, devices=[DeviceMemory("metal", 0, exact - 1)]))


def test_a_model_that_one_gpu_can_hold_is_spread_with_a_word() -> None:
    """As Ollama predicts it, which holds back one layer of a GPU."""
    model = {
        "layer_bytes": [10] * 6,
        "non_mapped_bytes": 20,
        "kv_bytes_per_layer": 1,
        "mapped_act_bytes": 5,
        "non_mapped_act_bytes": 8,
    }
    needed = 5 + 20 + (8 - 5) + (6 + 1) * (10 + 1)
    for room, named in ((needed, False), (needed + 1, True)):
        devices = [DeviceMemory("cuda", 0, RESERVE + 70), DeviceMemory("cuda", 1, RESERVE + room)]
        placement = spread(*demand_and_devices(**model, devices=devices))
        assert len(placement.layers) == 2
        word = "cuda:1 can hold the whole model: without --strategy spread no token would cross"
        assert any(line.startswith(word) for line in placement.warnings) is named
