"""The speed estimate against arithmetic by hand and against measured rates."""

from __future__ import annotations

import pytest

from mrs.plan import Placement
from mrs.plan.speed import DeviceSpeed, Work, estimate_speed

CPU = DeviceSpeed("cpu", 10.0)
GPU = DeviceSpeed("cuda", 100.0)


def work(layers: int = 2, kv: int = 0) -> Work:
    return Work([30] * layers, [kv] * layers, [0] * layers, 40, 0)


def test_decoding_is_bytes_over_bandwidth():
    speed = estimate_speed(Placement([(0, 2)]), work(), [CPU])
    assert speed.decode == pytest.approx((0.05, 0.1))


def test_a_full_cache_counts_at_the_low_end():
    speed = estimate_speed(Placement([(0, 2)]), work(kv=50), [CPU])
    assert speed.decode == pytest.approx((0.5 / 20, 0.1))


def test_each_device_reads_its_own_and_hops_cost():
    speed = estimate_speed(Placement([(0, 1), (1, 1)]), work(), [GPU, CPU], hop_seconds=0.15)
    assert speed.decode.high == pytest.approx(1 / (70 / 100 + 30 / 10 + 2 * 0.15))


def test_prompt_is_bound_by_arithmetic_once_chunks_are_long():
    heavy = Work([30], [0], [1000], 0, 0)
    one = estimate_speed(Placement([(0, 1)]), heavy, [CPU], chunk_tokens=1)
    many = estimate_speed(Placement([(0, 1)]), heavy, [CPU], chunk_tokens=100)
    assert one.prompt.high == pytest.approx(1 / max(30 / 10, 2000 / (10 * 80)))
    assert many.prompt.high == pytest.approx(100 / (2000 * 100 / (10 * 80)))
    assert many.prompt.low == pytest.approx(10 * 5 / 2000)


@pytest.mark.parametrize(
    ("bits", "decode", "prompt"),
    [(4.85, 23.7, 149), (8.5, 13.4, 86), (4.5, 23.2, 116), (16, 8, 71)],
)
def test_rates_measured_on_a_machine_that_reads_25_gb_a_second(bits, decode, prompt):
    """Other engines with a model of hidden 2048, 16 layers, 32/8 heads, ffn 8192, vocab 32000."""
    layer = 2048 * (2 * 2048 + 2 * 512 + 3 * 8192)
    head = 32000 * 2048
    size = [int(layer * bits / 8)] * 16
    model = Work(size, [512 * 2 * 512 * 2] * 16, [layer] * 16, int(head * bits / 8), head)
    speed = estimate_speed(Placement([(0, 16)]), model, [DeviceSpeed("cpu", 25e9)])
    assert speed.decode.low < decode < speed.decode.high
    assert speed.prompt.low < prompt < speed.prompt.high
