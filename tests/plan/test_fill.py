"""`fill` against a plain restatement of the device mapping rules, and its edge cases."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.fill import fill
from mrs.plan.placement.placement import Placement
from support.demands import demand_and_devices
from support.suites import examples

MIB = 1024**2
GIB = 1024**3
RESERVE = 512 * MIB


def restated(layers, non_mapped, kv, mapped_act, non_mapped_act, devices):
    """The same rules as a stack of devices and a stack of layers, written down a second time.

    Returns the runs, or the weight bytes that are left over.
    """
    device_stack = [(i, d) for i, d in enumerate(devices)]
    if any(d.kind == "metal" for d in devices):
        device_stack = [(i, d) for i, d in device_stack if d.kind != "cpu"]
    device_stack.reverse()
    layer_stack = list(zip(layers, kv, strict=True))[::-1]
    remaining = sum(layers) + non_mapped
    ordinal = done = 0
    runs = []
    while remaining > 0 and device_stack:
        index, device = device_stack.pop()
        cap = device.available_bytes
        if device.kind != "cpu":
            reserve = min(max(int(cap * 0.02), RESERVE), cap)
            cap -= reserve
        act = max(non_mapped_act, mapped_act) if ordinal == 0 else mapped_act
        if cap >= remaining + act + sum(kv[done:]):
            here = len(layers) - done
            remaining = 0
        else:
            used, weights, here = act, 0, 0
            if ordinal == 0:
                used += non_mapped
                weights += non_mapped
            while layer_stack and used + sum(layer_stack[-1]) <= cap:
                size, cache = layer_stack.pop()
                used += size + cache
                weights += size
                here += 1
            if here == 0:
                ordinal += 1
                continue
            remaining = max(0, remaining - weights)
        runs.append((index, here))
        if device.kind != "cpu":
            ordinal += 1
        done += here
    return remaining or runs


def random_problem(seed: int):
    """A small model and devices whose capacities often meet a boundary exactly."""
    pick = random.Random(seed)
    count = pick.randint(1, 12)
    layers = [pick.randint(1, 40) for _ in range(count)]
    kv = [pick.randint(0, 10) for _ in range(count)]
    if pick.random() < 0.5:
        layers, kv = layers[:1] * count, kv[:1] * count
    non_mapped, mapped_act, non_mapped_act = (pick.randint(0, n) for n in (60, 20, 20))
    demand = [w + k for w, k in zip(layers, kv, strict=True)]
    start, end = sorted(pick.choices(range(count + 1), k=2))

    def room() -> int:
        exact = sum(demand[start:end]) + mapped_act
        first = sum(demand[:end]) + non_mapped + max(mapped_act, non_mapped_act)
        some = pick.randint(0, sum(demand) + 100)
        return pick.choice([0, exact, exact - 1, first, first - 1, some, some, some // 2, 10**6])

    kind = pick.choice(["cuda", "cuda", "metal"])
    rooms = [max(0, room()) for _ in range(pick.randint(0, 4))]
    # Amounts are small, so that boundaries are met often; the reserve is added on top.
    devices = [DeviceMemory(kind, i, r + RESERVE if r else 0) for i, r in enumerate(rooms)]
    if not devices or pick.random() < 0.5:
        devices.append(DeviceMemory("cpu", 0, max(0, room())))
    return layers, non_mapped, kv, mapped_act, non_mapped_act, devices


def mapped(problem) -> Placement:
    layers, non_mapped, kv, mapped_act, non_mapped_act, devices = problem
    model = demand_and_devices(
        layer_bytes=layers,
        non_mapped_bytes=non_mapped,
        kv_bytes_per_layer=kv,
        mapped_act_bytes=mapped_act,
        non_mapped_act_bytes=non_mapped_act,
        devices=devices,
    )
    return fill(*model)


def check_invariants(problem, placement: Placement) -> None:
    layers, non_mapped, kv, mapped_act, _, devices = problem
    assert sum(n for _, n in placement.layers) == len(layers)
    assert [d for d, _ in placement.layers] == sorted({d for d, _ in placement.layers})
    start = 0
    for index, n in placement.layers:
        held = sum(layers[start : start + n]) + sum(kv[start : start + n]) + mapped_act
        held += non_mapped if index == 0 else 0
        assert held <= devices[index].usable_bytes or n == 0
        start += n


@examples(core=1500, full=10_000)
def test_equals_the_restatement_on_random_inputs(num_examples):
    outcomes = Counter()
    for seed in range(num_examples):
        problem = random_problem(seed)
        expected = restated(*problem)
        if isinstance(expected, int):
            with pytest.raises(DoesNotFit) as caught:
                mapped(problem)
            assert caught.value.missing_bytes == expected, seed
            outcomes["left over"] += 1
            continue
        placement = mapped(problem)
        assert placement.layers == expected, seed
        check_invariants(problem, placement)
        outcomes[min(len(expected), 3)] += 1
        outcomes["skipped"] += bool(placement.warnings)
    assert min(outcomes[kind] for kind in ("left over", "skipped", 1, 2, 3)) > 30, outcomes


def test_more_memory_never_places_fewer_layers_on_accelerators():
    compared = 0
    for seed in range(1_000):
        *model, devices = random_problem(seed)
        try:
            before = mapped((*model, devices))
        except DoesNotFit:
            continue
        pick = random.Random(-seed)
        index = pick.randrange(len(devices))
        old = devices[index]
        more = pick.randint(1, 200) + (0 if old.available_bytes else RESERVE)
        grown = list(devices)
        grown[index] = DeviceMemory(old.kind, old.ordinal, old.available_bytes + more)
        after = mapped((*model, grown))

        def on_accelerators(placement: Placement, devices=devices) -> int:
            return sum(n for i, n in placement.layers if devices[i].kind != "cpu")

        assert on_accelerators(after) >= on_accelerators(before), seed
        compared += 1
    assert compared > 150


def test_reserve_is_two_percent_of_a_large_device_and_none_of_the_cpu():
    assert DeviceMemory("cuda", 0, 80 * GIB).usable_bytes == 80 * GIB - int(80 * GIB * 0.02)
    assert DeviceMemory("cuda", 0, 8 * GIB).usable_bytes == 8 * GIB - 512 * MIB
    assert DeviceMemory("cuda", 0, 300 * MIB).usable_bytes == 0
    assert DeviceMemory("cpu", 0, 300 * MIB).usable_bytes == 300 * MIB


def test_device_without_room_is_named_and_skipped():
    devices = [DeviceMemory("cuda", 0, RESERVE), DeviceMemory("cuda", 1, RESERVE + 100)]
    placement = mapped(([10] * 4, 5, [1] * 4, 2, 2, devices))
    assert placement.layers == [(1, 4)]
    assert len(placement.warnings) == 1
    assert placement.warnings[0].startswith("cuda:0 can fit 0 layers")


def test_unified_memory_has_no_cpu_to_fall_back_to():
    devices = [DeviceMemory("metal", 0, RESERVE + 30), DeviceMemory("cpu", 0, 10**9)]
    with pytest.raises(DoesNotFit) as caught:
        mapped(([10] * 4, 0, [0] * 4, 0, 0, devices))
    assert caught.value.missing_bytes == 10
    assert caught.value.exit_code == 4


def test_no_devices_at_all():
    with pytest.raises(DoesNotFit) as caught:
        mapped(([10, 10], 5, [1, 1], 2, 2, []))
    assert caught.value.missing_bytes == 25
