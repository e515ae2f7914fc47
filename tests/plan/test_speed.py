"""The speed estimate against arithmetic by hand and against measured rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_models import write_headers

from mrs.plan.speed import CHOICE_STEPS, STEP_SECONDS, DeviceSpeed, SpeedEstimate
from mrs.plan.work import Work

CPU = DeviceSpeed("cpu", 10.0)
GPU = DeviceSpeed("cuda", 100.0)
SLOW_STEP, FAST_STEP = STEP_SECONDS["cpu"]


def estimate(
    *parts: tuple[Work, DeviceSpeed], chunk_tokens: int = 512, **more: Any
) -> SpeedEstimate:
    works, devices = zip(*parts, strict=True)
    return SpeedEstimate(works, devices, chunk_tokens, **more)


def test_decoding_is_bytes_over_bandwidth():
    speed = estimate((Work(weight_bytes=100, tensors=1), CPU))
    assert speed.decode == pytest.approx((0.05, 0.12), rel=1e-3)


def test_a_full_cache_counts_at_the_low_end():
    speed = estimate((Work(weight_bytes=100, cache_bytes=100, tensors=1), CPU))
    assert speed.decode == pytest.approx((0.025, 0.12), rel=1e-3)


def test_each_device_reads_its_own_and_hops_cost():
    parts = ((Work(weight_bytes=70, tensors=1), GPU), (Work(weight_bytes=30, tensors=1), CPU))
    speed = estimate(*parts, (Work(), CPU), hop_seconds=0.15)
    seconds = 70 / 100 + 30 / 12 + 2 * 0.15
    assert speed.decode.high == pytest.approx(1 / seconds, rel=1e-3)


def test_tensors_cost_their_steps():
    """Nothing else counts for a model this small."""
    speed = estimate((Work(weight_bytes=1, tensors=20), DeviceSpeed("cpu", 1e12)))
    assert speed.decode == pytest.approx((1 / (20 * SLOW_STEP), 1 / (20 * FAST_STEP)), rel=1e-3)
    with_head = Work(weight_bytes=1, tensors=20, head_weights=1)
    speed = estimate((with_head, DeviceSpeed("cpu", 1e12)))
    steps = 20 + CHOICE_STEPS
    assert speed.decode.high == pytest.approx(1 / (steps * FAST_STEP), rel=1e-3)


def test_a_prompt_goes_to_more_experts_than_a_token():
    work = Work(weight_bytes=20, expert_bytes=80, tensors=1)
    speed = estimate((work, CPU), chosen_share=0.25)
    assert 1 / speed.decode.high == pytest.approx((20 + 0.25 * 80) / 12, rel=1e-3)
    two = 1 - 0.75**2
    assert 2 / speed.prompt_of(2).high == pytest.approx((20 + two * 80) / 12, rel=1e-3)
    assert 100 / speed.prompt_of(100).high == pytest.approx(100 / 12, rel=1e-3)


def test_prompt_is_bound_by_arithmetic_once_chunks_are_long():
    work = Work(weight_bytes=30, weights=1000, past_numbers=500, tensors=1)
    speed = estimate((work, CPU), chunk_tokens=100)
    assert speed.prompt_of(1).high == pytest.approx(1 / max(30 / 12, 2000 / 400), rel=1e-3)
    assert speed.prompt.high == pytest.approx(400 / 2000, rel=1e-3)
    assert speed.prompt.low == pytest.approx(50 / 3000, rel=1e-3)


def test_a_prompt_comes_in_chunks():
    speed = estimate((Work(weight_bytes=120, tensors=1), CPU), chunk_tokens=10)
    assert speed.prompt_of(10).high == pytest.approx(1.0, rel=1e-3)
    assert speed.prompt_of(25).high == pytest.approx(25 / 30, rel=1e-3)
    assert speed.prompt_of(10) == speed.prompt


def test_a_rate_shows_how_fast_memory_is_at_least():
    work = Work(weight_bytes=2 * 10**9, expert_bytes=4 * 10**9, tensors=1)
    slow = estimate((work, DeviceSpeed("cpu", 10e9)), chosen_share=0.25)
    rate = 1.5 * slow.decode.high
    shown = slow.shown_bandwidth(0, rate)
    assert shown == pytest.approx(15e9, rel=1e-3)
    fast = estimate((work, DeviceSpeed("cpu", shown)), chosen_share=0.25)
    assert fast.decode.high == pytest.approx(rate, rel=1e-3)


def test_a_model_that_caches_hold_shows_nothing():
    speed = estimate((Work(weight_bytes=10**8, tensors=1), DeviceSpeed("cpu", 1e9)))
    assert speed.shown_bandwidth(0, 100.0) == 0


@pytest.mark.parametrize(
    ("bits", "decode", "prompt"),
    [(4.85, 23.7, 149), (8.5, 13.4, 86), (4.5, 23.2, 116), (16, 8, 71)],
)
def test_rates_measured_on_a_machine_that_reads_25_gb_a_second(bits, decode, prompt):
    """Other engines with a model of hidden 2048, 16 layers, 32/8 heads, ffn 8192, vocab 32000."""
    layer = 2048 * (2 * 2048 + 2 * 512 + 3 * 8192)
    head = 32000 * 2048
    work = Work(
        weight_bytes=int((16 * layer + head) * bits / 8),
        cache_bytes=16 * 512 * 2 * 512 * 2,
        tensors=16 * 9 + 2,
        weights=16 * layer,
        head_weights=head,
    )
    speed = estimate((work, DeviceSpeed("cpu", 25e9)))
    assert speed.decode.low < decode < speed.decode.high
    assert speed.prompt.low < prompt < speed.prompt.high


MIDDLE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "head_dim": 64,
}
MEASURED: list[tuple[dict[str, Any], str | None, float, float, float]] = [
    ({"model_type": "llama", "num_hidden_layers": 16}, None, 30.4, 275, 282),
    ({"model_type": "llama", "num_hidden_layers": 16}, "q4k", 77.4, 631, 590),
    (
        {"model_type": "gemma2", "num_hidden_layers": 12, "sliding_window": 1024},
        None,
        38.9,
        390,
        412,
    ),
    (
        {
            "model_type": "qwen3_moe",
            "num_hidden_layers": 8,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
        },
        "q4k",
        106,
        622,
        1100,
    ),
    (
        {
            "model_type": "deepseek_v2",
            "num_hidden_layers": 8,
            "n_routed_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "kv_lora_rank": 256,
            "q_lora_rank": 512,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
        },
        None,
        35.9,
        262,
        321,
    ),
]
#: One core of a server's processor with AVX-512 VNNI, in CPU time, which read so much alone.
ONE_CORE = "cpu=16GiB,bandwidth=13.3GB/s"


@pytest.fixture
def _no_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.plan.estimate.torch_units", frozenset)


@pytest.mark.usefixtures("_no_matrix_units")
@pytest.mark.parametrize(("config", "isq", "decode", "short", "chunk"), MEASURED)
def test_our_rates_on_one_core(
    tmp_path: Path, planner_of, config, isq, decode, short, chunk
) -> None:
    """Decoding, a prompt of 32 tokens and one of 512, of random models."""
    folder = write_headers(tmp_path, {**MIDDLE, **config})
    planner, request = planner_of(folder, ONE_CORE, isq=isq, max_seq_len=1024)
    check(planner.plan(request).speed, decode, short, chunk)


@pytest.mark.usefixtures("_no_matrix_units")
@pytest.mark.parametrize(
    ("isq", "decode", "short", "chunk"),
    [(None, 1140, 10300, 11400), ("q4k", 1310, 15200, 13400)],
)
def test_the_demo_on_one_core(planner_of, isq, decode, short, chunk) -> None:
    planner, request = planner_of(Path("demo"), ONE_CORE, isq=isq, max_seq_len=1024)
    check(planner.plan(request).speed, decode, short, chunk)


def check(speed: SpeedEstimate, decode: float, short: float, chunk: float) -> None:
    for measured, (low, high) in (
        (decode, speed.decode),
        (short, speed.prompt_of(32)),
        (chunk, speed.prompt),
    ):
        assert low < measured < high
        assert high < 20 * low, "a range this wide says nothing"
