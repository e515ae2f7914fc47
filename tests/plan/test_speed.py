"""The speed estimate against arithmetic by hand and against measured rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrs.plan.cost import Work
from mrs.plan.speed.roofline import CHOICE_STEPS, GATHERED_STEPS, DeviceSpeed, Range, SpeedEstimate
from support.model_files import write_headers

SLOW_STEP, FAST_STEP = 30e-6, 5e-6


def device(
    read: float, *, operations: float = 1e18, step: tuple[float, float] = (1e-12, 1e-12)
) -> DeviceSpeed:
    """A device that reads half as much at worst, and multiplies that fast."""
    return DeviceSpeed(Range(read / 2, read), Range(operations / 2, operations), Range(*step))


CPU, GPU = device(12.0), device(100.0)


def estimate(
    *parts: tuple[Work, DeviceSpeed], chunk_tokens: int = 512, **more: Any
) -> SpeedEstimate:
    works, devices = zip(*parts, strict=True)
    return SpeedEstimate(works, devices, chunk_tokens, **more)


def test_decoding_is_bytes_over_bandwidth():
    speed = estimate((Work(weight_bytes=100, tensors=1), CPU))
    assert speed.decode == pytest.approx((0.06, 0.12), rel=1e-3)


def test_a_full_cache_counts_at_the_low_end():
    speed = estimate((Work(weight_bytes=100, cache_bytes=100, tensors=1), CPU))
    assert speed.decode == pytest.approx((0.03, 0.12), rel=1e-3)


def test_each_device_reads_its_own_and_hops_cost():
    parts = ((Work(weight_bytes=70, tensors=1), GPU), (Work(weight_bytes=30, tensors=1), CPU))
    speed = estimate(*parts, (Work(), CPU), hop_seconds=0.15)
    seconds = 70 / 100 + 30 / 12 + 2 * 0.15
    assert speed.decode.high == pytest.approx(1 / seconds, rel=1e-3)


def test_tensors_cost_their_steps():
    """Nothing else counts for a model this small."""
    fast = device(1e12, step=(SLOW_STEP, FAST_STEP))
    speed = estimate((Work(weight_bytes=1, tensors=20), fast))
    assert speed.decode == pytest.approx((1 / (20 * SLOW_STEP), 1 / (20 * FAST_STEP)), rel=1e-3)
    speed = estimate((Work(weight_bytes=1, tensors=20, head_weights=1), fast))
    steps = 20 + CHOICE_STEPS
    assert speed.decode.high == pytest.approx(1 / (steps * FAST_STEP), rel=1e-3)


def test_experts_cost_a_step_for_each_that_is_called():
    fast = device(1e12, step=(SLOW_STEP, FAST_STEP))
    work = Work(weight_bytes=1, tensors=20, expert_tensors=300)
    speed = estimate((work, fast), chosen_share=0.1)
    assert 1 / speed.decode.high == pytest.approx((20 + 30) * FAST_STEP, rel=1e-3)
    all_called = 20 + GATHERED_STEPS * 300
    assert 500 / speed.prompt_of(500).high == pytest.approx(all_called * FAST_STEP, rel=1e-3)


def test_a_prompt_goes_to_more_experts_than_a_token():
    work = Work(weight_bytes=20, expert_bytes=80, tensors=1)
    speed = estimate((work, CPU), chosen_share=0.25)
    assert 1 / speed.decode.high == pytest.approx((20 + 0.25 * 80) / 12, rel=1e-3)
    two = 1 - 0.75**2
    assert 2 / speed.prompt_of(2).high == pytest.approx((20 + two * 80) / 12, rel=1e-3)
    assert 100 / speed.prompt_of(100).high == pytest.approx(100 / 12, rel=1e-3)


def test_experts_may_be_bound_by_reading_while_the_rest_multiplies():
    work = Work(weight_bytes=12, weights=500, expert_bytes=120, expert_weights=100, tensors=1)
    speed = estimate((work, device(12.0, operations=1000)), chosen_share=1.0)
    assert 4 / speed.prompt_of(4).high == pytest.approx(4 + 10, rel=1e-3)


def test_prompt_is_bound_by_arithmetic_once_chunks_are_long():
    work = Work(weight_bytes=30, weights=1000, past_multiplications=1000, tensors=1)
    part = (work, device(12.0, operations=400))
    speed = estimate(part, chunk_tokens=100, context_tokens=100)
    assert speed.prompt.high == pytest.approx(400 / 3000, rel=1e-3)
    assert speed.prompt.low == pytest.approx(200 / 3000, rel=1e-3)


def test_later_chunks_have_more_before_them():
    work = Work(weights=1000, past_multiplications=1000, tensors=1)
    speed = estimate((work, device(1e9, operations=400)), chunk_tokens=100, context_tokens=200)
    seconds = 100 * 2 * (1000 + 250) / 400 + 100 * 2 * (1000 + 750) / 400
    assert speed.prompt_of(200).high == pytest.approx(200 / seconds, rel=1e-3)


def test_a_prompt_comes_in_chunks():
    speed = estimate((Work(weight_bytes=120, tensors=1), CPU), chunk_tokens=10)
    assert speed.prompt_of(10).high == pytest.approx(1.0, rel=1e-3)
    assert speed.prompt_of(25).high == pytest.approx(25 / 30, rel=1e-3)
    assert speed.prompt_of(10) == speed.prompt


def test_a_rate_shows_how_fast_memory_is_at_least():
    work = Work(weight_bytes=2 * 10**9, expert_bytes=4 * 10**9, tensors=1)
    speed = estimate((work, device(12e9)), chosen_share=0.25)
    assert speed.shown_bandwidth(0, 5.0) == pytest.approx(15e9)


def test_a_model_that_caches_hold_shows_nothing():
    speed = estimate((Work(weight_bytes=10**8, tensors=1), CPU))
    assert speed.shown_bandwidth(0, 100.0) == 0


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
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Plan for so many threads of a server's processor of 3 GHz without bf16 units."""

    def pretend(threads: int) -> None:
        (tmp_path / "cpuinfo").write_text("cpu MHz : 3000.0\n")
        monkeypatch.setattr("mrs.devices.processor.PROC", tmp_path)
        monkeypatch.setattr("mrs.devices.processor.cpu_threads", lambda: threads)
        monkeypatch.setattr("mrs.devices.processor.cpu_path", lambda: "avx512")
        monkeypatch.setattr("mrs.devices.processor.cpu_paths", lambda: ["avx512"])

    return pretend


@pytest.mark.parametrize(("config", "isq", "decode", "short", "chunk"), MEASURED)
def test_our_rates_on_one_core(
    tmp_path: Path, planner_of, processor, config, isq, decode, short, chunk
) -> None:
    """Decoding, a prompt of 32 tokens and one of 512, of random models."""
    processor(1)
    folder = write_headers(tmp_path, {**MIDDLE, **config})
    planner, request = planner_of(folder, ONE_CORE, isq=isq, max_seq_len=1024)
    check(planner.plan(request).speed, decode, short, chunk)


@pytest.mark.parametrize(
    ("isq", "decode", "short", "chunk"),
    [(None, 1140, 10300, 11400), ("q4k", 1310, 15200, 13400)],
)
def test_the_demo_on_one_core(planner_of, processor, isq, decode, short, chunk) -> None:
    processor(1)
    planner, request = planner_of(Path("demo"), ONE_CORE, isq=isq, max_seq_len=1024)
    check(planner.plan(request).speed, decode, short, chunk)


LARGE: dict[str, Any] = {
    **MIDDLE,
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
}


@pytest.mark.parametrize(
    ("isq", "decode", "prompt"), [(None, 15.6, 136), ("q4k", 48.6, 447), ("q8_0", 28.0, 358)]
)
@pytest.mark.parametrize("bandwidth", ["", ",bandwidth=33.5GB/s"])
def test_the_rates_of_the_readme(
    tmp_path, planner_of, processor, isq, decode, prompt, bandwidth
) -> None:
    """1.1 billion parameters on two cores, with and without their bandwidth being known."""
    processor(2)
    folder = write_headers(tmp_path, LARGE)
    planner, request = planner_of(folder, f"cpu=16GiB{bandwidth}", isq=isq, max_seq_len=1024)
    speed = planner.plan(request).speed
    most = 1.8 if bandwidth else 2.8
    assert speed.decode.low < decode < speed.decode.high < most * speed.decode.low
    low, high = speed.prompt_of(512)
    assert low < prompt < high < 4.1 * low


def check(speed: SpeedEstimate, decode: float, short: float, chunk: float) -> None:
    for measured, (low, high), most in (
        (decode, speed.decode, 2.8),
        (short, speed.prompt_of(32), 4.1),
        (chunk, speed.prompt, 4.1),
    ):
        assert low < measured < high
        assert high < most * low, "a range this wide says nothing"
