"""The manual layer map: what it accepts, where layers go, and that errors quote the fault."""

from __future__ import annotations

import pytest

from mrs.devices.device import DeviceMemory
from mrs.errors import UsageError
from mrs.plan.placement.layer_map import manual_placement, parse_layer_map

TWO_GPUS = [
    DeviceMemory("cuda", 0, 10**9),
    DeviceMemory("cuda", 1, 10**9),
    DeviceMemory("cpu", 0, 10**9),
]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("16", [(0, 16)]),
        (" 16 ", [(0, 16)]),
        ("0", [(0, 0)]),
        ("0:16;1:16", [(0, 16), (1, 16)]),
        ("1:4; 0:2", [(1, 4), (0, 2)]),
    ],
)
def test_accepted(text, pairs):
    assert parse_layer_map(text) == pairs


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "''"),
        ("-1", "'-1'"),
        ("0:-1", "'0:-1'"),
        ("0:1.5", "'0:1.5'"),
        ("0:16;", "''"),
        ("0:16,1:16", "'0:16,1:16'"),
        ("0:16;a:2", "'a:2'"),
        ("0:16;1", "'1'"),
        ("0:1:2", "'0:1:2'"),
        ("0:16;00:2", "'00:2'"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_refused_with_the_part_at_fault(text, quoted):
    with pytest.raises(UsageError) as caught:
        parse_layer_map(text)
    assert quoted[:50] in str(caught.value)  # of a long one, errors quote the beginning
    assert "--num-device-layers" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("pairs", "layers"),
    [
        ([(0, 16)], [(0, 16), (2, 16)]),
        ([(0, 16), (1, 16)], [(0, 16), (1, 16)]),
        ([(1, 4), (0, 2)], [(1, 4), (0, 2), (2, 26)]),
        ([(0, 0)], [(2, 32)]),
        ([(0, 0), (1, 32)], [(1, 32)]),
    ],
)
def test_placed(pairs, layers):
    placement = manual_placement(pairs, 32, TWO_GPUS)
    assert placement.layers == layers
    assert len(placement.layer_devices) == 32


@pytest.mark.parametrize(
    ("pairs", "devices", "quoted"),
    [
        ([(2, 4)], TWO_GPUS, "'2:4'"),
        ([(0, 4)], TWO_GPUS[2:], "'0:4'"),
        ([(0, 20), (1, 13)], TWO_GPUS, "'1:13'"),
        ([(0, 20), (1, 2)], TWO_GPUS[:2], "10 of 32 layers"),
    ],
)
def test_refused_for_these_devices(pairs, devices, quoted):
    with pytest.raises(UsageError) as caught:
        manual_placement(pairs, 32, devices)
    assert quoted in str(caught.value)
    assert caught.value.hint
