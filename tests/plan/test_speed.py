"""The speed estimate against arithmetic by hand and against measured rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrs.plan.cost import Work
from mrs.plan.speed.draft_gain import draft_cost
from mrs.plan.speed.roofline import CHOICE_STEPS, GATHERED_STEPS, DeviceSpeed, Rate, SpeedEstimate
from support.model_files import write_headers

STEP = 5e-6


def device(
    read: float,
    *,
    cache: float = 0.0,
    operations: float = 1e18,
    step: float = 1e-12,
    error: float = 0.0,
) -> DeviceSpeed:
    """A device that reads and multiplies that fast; its cache as fast if no rate is given."""
    return DeviceSpeed(
        read, cache or read, operations, step, decode_error=error, prompt_error=2 * error
    )


CPU, GPU = device(12.0), device(100.0)


def estimate(
    *parts: tuple[Work, DeviceSpeed], chunk_tokens: int = 512, **more: Any
) -> SpeedEstimate:
    works, devices = zip(*parts, strict=True)
    return SpeedEstimate(works, devices, chunk_tokens, **more)


def test_decoding_is_bytes_over_bandwidth():
    speed = estimate((Work(weight_bytes=100, tensors=1), CPU))
    assert speed.decode == pytest.approx((0.12, 0.12, 0.12), rel=1e-3)


def test_the_cache_is_read_as_far_as_it_is_full():
    work = Work(weight_bytes=100, cache_bytes=100, tensors=1)
    speed = estimate((work, device(12.0, cache=6.0)), context_tokens=10)
    for cached, seconds in ((0, 100 / 12), (5, 100 / 12 + 50 / 6), (10, 100 / 12 + 100 / 6)):
        assert 1 / speed.decode_at(cached).expected == pytest.approx(seconds, rel=1e-3)
    assert speed.decode_when_full == speed.decode_at(10) == speed.decode_at(99)


def test_replies_together_share_the_weights_and_read_a_cache_each():
    work = Work(weight_bytes=100, cache_bytes=40, tensors=1)
    speed = estimate((work, device(10.0)), context_tokens=10)
    for count, cached in ((1, 10), (4, 0), (4, 10), (16, 5)):
        seconds = 100 / 10 + count * 40 * (cached / 10) / 10
        assert speed.decode_of(count, cached).expected == pytest.approx(count / seconds, rel=1e-3)
    assert speed.decode_of(1, 5).expected == pytest.approx(speed.decode_at(5).expected)


def test_a_window_is_full_before_the_context_is() -> None:
    work = Work(weight_bytes=100, cache_bytes=100, tensors=1)
    speed = estimate(
        (work, device(10.0)), context_tokens=1000, windows={100: (Work(cache_bytes=50),)}
    )
    for cached, read in ((0, 0), (50, 5 + 25), (100, 10 + 50), (500, 50 + 50)):
        seconds = (100 + read) / 10
        assert 1 / speed.decode_at(cached).expected == pytest.approx(seconds, rel=1e-3)


def test_states_are_read_for_each_reply_however_long_it_is() -> None:
    work = Work(weight_bytes=100, state_bytes=20, tensors=1)
    speed = estimate((work, device(10.0)), context_tokens=1000)
    for count, cached in ((1, 0), (1, 1000), (8, 500)):
        seconds = (100 + count * 20) / 10
        assert speed.decode_of(count, cached).expected == pytest.approx(count / seconds, rel=1e-3)


def test_a_core_multiplies_few_tokens_while_it_reads() -> None:
    """Two tokens hide behind the read of the weights, of experts two that have chosen the same."""
    core = replace(device(10.0, operations=20.0), overlaps=False)
    speed = estimate((Work(weight_bytes=100, weights=50, tensors=1), core))
    for count, seconds in ((1, 10), (2, 10), (4, 10 + 2 * 5), (16, 10 + 14 * 5)):
        assert speed.decode_of(count, 0).expected == pytest.approx(count / seconds, rel=1e-2)
    experts = Work(expert_bytes=1000, expert_weights=5, tensors=1)
    assert 1 / estimate((experts, core), chosen_share=0.1).decode.expected == pytest.approx(
        10, 1e-3
    )
    many = estimate((experts, core), chosen_share=0.1).decode_of(64, 0)
    assert many.expected == pytest.approx(64 / (100 + (64 - 20) * 0.5), rel=1e-2)


def test_rows_of_drafts_cost_by_groups() -> None:
    """The first row of a group costs most, and those of weights with more products cost more."""

    def rows(operations: float) -> list[float]:
        core = replace(device(10.0, operations=operations), overlaps=False)
        work = Work(weight_bytes=100, weights=50, tensors=1)
        return list(draft_cost(estimate((work, core))).row_costs)

    slow, fast = rows(20.0), rows(100.0)
    assert len(slow) == 16
    for cost in (slow, fast):
        assert cost[0] == 1
        assert cost == sorted(cost)
        assert cost[4] - cost[3] > 4 * (cost[7] - cost[6])
    assert all(a > b for a, b in zip(slow[2:], fast[2:], strict=True))
    assert slow[15] == pytest.approx((10 + 14 * 5) / 10, rel=0.01)


def test_attention_takes_its_own_time_beside_the_products_of_weights():
    """Many replies are limited by products of weights, and their attention by another rate."""
    work = Work(weights=100, past_multiplications=30, cache_bytes=1, tensors=1)
    rates = replace(device(1e9, operations=100.0), attention_operations_per_s=20.0)
    speed = estimate((work, rates), context_tokens=10)
    for count, cached in ((1, 10), (8, 10), (8, 5)):
        seconds = count * (2 * 100 / 100 + 2 * 30 * (cached / 10) / 20)
        assert speed.decode_of(count, cached).expected == pytest.approx(count / seconds, rel=1e-3)


def test_replies_together_are_limited_by_products_and_choose_a_token_each():
    work = Work(weight_bytes=100, weights=100, head_weights=50, tensors=1)
    fast = estimate((work, device(1e9, operations=100.0)))
    assert fast.decode_of(8, 0).expected == pytest.approx(100 / (2 * 150), rel=1e-3)
    slow = estimate((work, device(1e9, step=0.1)))
    seconds = 0.1 * (1 + 8 * CHOICE_STEPS)
    assert slow.decode_of(8, 0).expected == pytest.approx(8 / seconds, rel=1e-2)


def test_an_error_is_a_factor_both_ways():
    part = (Work(weight_bytes=100, tensors=1), device(10.0, error=0.25))
    assert estimate(part).decode == pytest.approx(Rate(0.08, 0.1, 0.125), rel=1e-3)
    prompt = estimate(part).prompt_of(10)
    assert prompt.high / prompt.expected == pytest.approx(1.5)


def test_the_error_of_several_devices_is_weighted_by_their_time():
    work = Work(weight_bytes=10, tensors=1)
    parts = ((work, device(10.0, error=0.2)), (work, device(10 / 3, error=0.6)))
    decode = estimate(*parts, hop_seconds=0.0).decode
    assert decode.high / decode.expected == pytest.approx(1.5)


def test_each_device_reads_its_own_and_hops_cost():
    parts = ((Work(weight_bytes=70, tensors=1), GPU), (Work(weight_bytes=30, tensors=1), CPU))
    speed = estimate(*parts, (Work(), CPU), hop_seconds=0.15)
    seconds = 70 / 100 + 30 / 12 + 2 * 0.15
    assert speed.decode.expected == pytest.approx(1 / seconds, rel=1e-3)


def test_tensors_cost_their_steps():
    """Nothing else counts for a model this small."""
    fast = device(1e12, step=STEP)
    speed = estimate((Work(weight_bytes=1, tensors=20), fast))
    assert 1 / speed.decode.expected == pytest.approx(20 * STEP, rel=1e-3)
    speed = estimate((Work(weight_bytes=1, tensors=20, head_weights=1), fast))
    assert 1 / speed.decode.expected == pytest.approx((20 + CHOICE_STEPS) * STEP, rel=1e-3)


def test_experts_cost_a_step_for_each_that_is_called():
    fast = device(1e12, step=STEP)
    work = Work(weight_bytes=1, tensors=20, expert_tensors=300, expert_products=3)
    speed = estimate((work, fast), chosen_share=0.1)
    assert 1 / speed.decode.expected == pytest.approx((20 + 30) * STEP, rel=1e-3)
    all_called = 20 + GATHERED_STEPS * 300
    assert 500 / speed.prompt_of(500).expected == pytest.approx(all_called * STEP, rel=1e-3)


def test_one_step_multiplies_all_chosen_experts_where_a_device_groups_them():
    work = Work(weight_bytes=1, tensors=20, expert_tensors=300, expert_products=3)
    grouping = replace(device(1e12, step=STEP), groups_experts=True)
    speed = estimate((work, grouping), chosen_share=0.1)
    assert 1 / speed.decode.expected == pytest.approx((20 + 3) * STEP, rel=1e-3)


def test_a_prompt_goes_to_more_experts_than_a_token():
    work = Work(weight_bytes=20, expert_bytes=80, tensors=1)
    speed = estimate((work, CPU), chosen_share=0.25)
    assert 1 / speed.decode.expected == pytest.approx((20 + 0.25 * 80) / 12, rel=1e-3)
    two = 1 - 0.75**2
    assert 2 / speed.prompt_of(2).expected == pytest.approx((20 + two * 80) / 12, rel=1e-3)
    assert 100 / speed.prompt_of(100).expected == pytest.approx(100 / 12, rel=1e-3)


def test_experts_may_be_bound_by_reading_while_the_rest_multiplies():
    work = Work(weight_bytes=12, weights=500, expert_bytes=120, expert_weights=100, tensors=1)
    speed = estimate((work, device(12.0, operations=1000)), chosen_share=1.0)
    assert 4 / speed.prompt_of(4).expected == pytest.approx(4 + 10, rel=1e-3)


def test_prompt_is_bound_by_arithmetic_once_chunks_are_long():
    work = Work(weight_bytes=30, weights=1000, past_multiplications=1000, tensors=1)
    part = (work, device(12.0, operations=400))
    speed = estimate(part, chunk_tokens=100, context_tokens=100)
    assert speed.prompt.expected == pytest.approx(400 / 3000, rel=1e-3)


def test_later_chunks_have_more_before_them():
    work = Work(weights=1000, past_multiplications=1000, tensors=1)
    speed = estimate((work, device(1e9, operations=400)), chunk_tokens=100, context_tokens=200)
    seconds = 100 * 2 * (1000 + 250) / 400 + 100 * 2 * (1000 + 750) / 400
    assert speed.prompt_of(200).expected == pytest.approx(200 / seconds, rel=1e-3)


def test_a_prompt_comes_in_chunks():
    speed = estimate((Work(weight_bytes=120, tensors=1), CPU), chunk_tokens=10)
    assert speed.prompt_of(10).expected == pytest.approx(1.0, rel=1e-3)
    assert speed.prompt_of(25).expected == pytest.approx(25 / 30, rel=1e-3)
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
LARGE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
}
#: On two threads of a virtual EPYC (Zen 5): what differs from `MIDDLE`, quantization, the bandwidth
#: of a plain read in the same run in GB/s, and tokens a second of a reply after 32 tokens.
MEASURED: list[tuple[dict[str, Any], str | None, float, float]] = [
    ({"model_type": "llama", "num_hidden_layers": 16}, None, 53.0, 92.2),
    ({"model_type": "llama", "num_hidden_layers": 16}, "q4k", 32.7, 215),
    (
        {"model_type": "gemma2", "num_hidden_layers": 12, "sliding_window": 1024},
        None,
        29.4,
        81.4,
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
        31.1,
        341,
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
        48.8,
        131,
    ),
    (LARGE, "q4k", 49.9, 61.8),
    (LARGE, None, 32.4, 14.8),
]


@pytest.fixture
def measured_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor of those measurements, whatever runs the tests."""
    (tmp_path / "cpuinfo").write_text("cpu MHz : 2600.0\n")
    monkeypatch.setattr("mrs.devices.processor.PROC", tmp_path)
    monkeypatch.setattr("mrs.devices.processor.cpu_threads", lambda: 2)
    monkeypatch.setattr("mrs.devices.processor.cpu_path", lambda: "avx512_bf16")
    monkeypatch.setattr("mrs.devices.processor.cpu_paths", lambda: ["avx512_bf16", "avx512"])


@pytest.mark.usefixtures("measured_processor")
@pytest.mark.parametrize(("config", "isq", "gb_per_s", "decode"), MEASURED)
def test_our_rates_on_two_threads(
    tmp_path: Path, planner_of, config, isq, gb_per_s, decode
) -> None:
    """Measured rates are within a fifth of what is expected."""
    folder = write_headers(tmp_path, {**MIDDLE, **config})
    device = f"cpu=16GiB,bandwidth={gb_per_s}GB/s"
    planner, request = planner_of(folder, device, isq=isq, max_seq_len=1024)
    expected = planner.plan(request).speed.decode_at(32).expected
    assert 1 / 1.2 < expected / decode < 1.2


@pytest.mark.usefixtures("measured_processor")
@pytest.mark.parametrize(("isq", "decode"), [(None, 5450), ("q4k", 6430)])
def test_the_demo_on_two_threads(planner_of, isq, decode) -> None:
    """Caches hold it, so steps are what it takes."""
    planner, request = planner_of(Path("demo"), "cpu=16GiB,bandwidth=50GB/s", isq=isq)
    expected = planner.plan(request).speed.decode_at(32).expected
    assert 1 / 1.35 < expected / decode < 1.35


def test_a_machine_that_nothing_is_known_of_says_so(planner_of) -> None:
    planner, request = planner_of(Path("demo"), "cpu=16GiB")
    assumed = planner.plan(request).speed.decode
    planner, request = planner_of(Path("demo"), "cpu=16GiB,bandwidth=50GB/s")
    given = planner.plan(request).speed.decode
    assert assumed.high / assumed.low > given.high / given.low


def test_a_weight_of_an_expert_takes_as_many_instructions_as_others(tmp_path, planner_of) -> None:
    """So where these are the limit, a mixture is read no faster than a dense model."""
    configs = [config for config, *_ in MEASURED if config["model_type"] in ("llama", "qwen3_moe")]
    rates = []
    for number, config in enumerate(configs[:1] + configs[2:3]):
        folder = write_headers(tmp_path / str(number), {**MIDDLE, **config})
        planner, request = planner_of(folder, "cuda:0=H200", isq="q4k")
        rates.append(planner.plan(request).speed.devices[0].read_bytes_per_s)
    assert rates[1] == pytest.approx(rates[0], rel=0.1)
