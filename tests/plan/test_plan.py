"""Whole plans: of models whose weights are not there, on hardware that is not there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mrs.errors import DoesNotFit, UsageError
from mrs.formats import FORMATS
from mrs.plan.memory import stored_weights
from mrs.plan.plan import Plan
from mrs.plan.report.conversions import conversion_text, conversions, memory_bytes
from mrs.plan.report.document import SCHEMA, to_document
from mrs.request import CacheType, PagedRequest
from mrs.units import GIB
from support.model_files import (
    GPT_OSS,
    LLAMA_70B,
    SMALL_LLAMA,
    tensor_shapes,
    write_few_bits,
    write_headers,
)
from support.suites import examples


def check(plan: Plan) -> None:
    """Assert what is true of every plan."""
    assert len(plan.layer_devices) == plan.model.layers
    runs = [index for index, _ in groupby(plan.layer_devices)]
    assert len(runs) == len(set(runs)), "the layers of a device are not consecutive"
    assert sum(terms.layers for terms in plan.breakdowns) == plan.model.layers
    assert sum(t.weight_bytes for t in plan.breakdowns) == sum(
        weights.size_bytes for weights in plan.storage.values()
    )
    assert sum(t.kv_bytes for t in plan.breakdowns) == sum(plan.kv_bytes)
    for terms in plan.breakdowns:
        low, expected, high = terms.total
        assert low <= expected <= high
        if plan.fits:
            assert expected <= terms.available_bytes
            assert terms.weight_bytes <= terms.available_bytes
    assert plan.breakdowns[plan.primary_device].weight_bytes > 0
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(
        json.loads(json.dumps(to_document(plan)))
    )


def test_plans_of_quantized_caches_are_of_the_schema(llama_70b: Path, planner_of) -> None:
    kinds: tuple[tuple[CacheType, CacheType], ...] = (("q8_0", "q8_0"), ("q8_0", "q4_0"))
    for keys, values in kinds:
        paged = PagedRequest(key_cache_type=keys, value_cache_type=values)
        planner, request = planner_of(llama_70b, "cpu=200GiB", paged=paged)
        check(planner.plan(request))


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("gpus", "gib", "cpu_gib", "spilled"),
    [(1, 80, 128, True), (2, 80, 16, False), (4, 40, 16, False)],
)
def test_70b_on_hypothetical_gpus(
    llama_70b: Path, planner_of, gpus: int, gib: int, cpu_gib: int, spilled: bool
) -> None:
    devices = [f"cuda:{i}={gib}GiB,bandwidth=2000GB/s" for i in range(gpus)]
    planner, request = planner_of(llama_70b, *devices, f"cpu={cpu_gib}GiB")
    plan = planner.plan(request)
    check(plan)
    assert plan.fits
    assert (plan.spilled_layers > 0) == spilled
    # 70.55 billion weights of two bytes; 8 key heads of 128 values in 80 layers.
    assert plan.model.parameters == 70_553_706_496
    assert plan.kv_bytes_per_token == 2 * 8 * 128 * 2 * 80
    assert sum(plan.kv_bytes) == 4096 * plan.kv_bytes_per_token
    matrices = 2 * sum(
        a * b for a, b in (s for s in tensor_shapes(LLAMA_70B).values() if len(s) == 2)
    )
    assert sum(t.weight_bytes for t in plan.breakdowns) - matrices == 4 * 161 * 8192
    # A GPU cannot read 141 GB faster than its bandwidth allows.
    assert spilled or plan.speed.decode.low < 2000e9 / 141e9 < 1.1 * plan.speed.decode.high
    used = [terms for terms in plan.breakdowns[:-1] if terms.layers]
    assert len(used) == gpus


def test_the_strategies(llama_70b: Path, planner_of) -> None:
    devices = [f"cuda:{i}=80GiB" for i in range(4)]
    plans = {}
    for strategy in ("fill", "spread", "fastest"):
        planner, request = planner_of(llama_70b, *devices, strategy=strategy)
        plans[strategy] = planner.plan(request)
        check(plans[strategy])
    counts = {name: [terms.layers for terms in plan.breakdowns] for name, plan in plans.items()}
    assert counts["fill"][2:] == [0, 0]
    assert max(counts["spread"][:4]) - min(counts["spread"][:4]) <= 1
    assert sum(count > 0 for count in counts["fastest"]) == 2
    fastest, fill = (plans[name].speed.decode.high for name in ("fastest", "fill"))
    assert fastest >= fill * (1 - 1e-9), "the sums differ by rounding only"


def test_head_and_embedding_count_on_the_first_device_with_layers(
    llama_70b: Path, planner_of
) -> None:
    """The first GPU holds no layer, so the second one gets the embedding and the head."""
    planner, request = planner_of(llama_70b, "cuda:0=3GiB", "cuda:1=80GiB", "cpu=128GiB")
    plan = planner.plan(request)
    check(plan)
    assert plan.fits
    assert plan.primary_device == 1
    assert plan.breakdowns[0].total.expected == 0
    embedding = 2 * 2 * 128256 * 8192
    assert plan.breakdowns[1].weight_bytes > embedding
    assert any("cuda:0" in warning for warning in plan.warnings)


def test_a_plan_that_does_not_fit_gives_the_missing_bytes(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=40GiB", "cpu=32GiB")
    plan = planner.plan(request)
    check(plan)
    total = sum(terms.total.expected for terms in plan.breakdowns)
    assert plan.missing_bytes == pytest.approx(total - 72 * GIB, abs=3 * GIB)
    with pytest.raises(DoesNotFit) as raised:
        plan.require_fit()
    assert raised.value.missing_bytes == plan.missing_bytes


def test_unified_memory_counts_once(llama_70b: Path, planner_of) -> None:
    """The CPU's memory is the accelerator's own: nothing spills, and -n may still name the CPU."""
    devices = ("metal:0=96GiB", "cpu=128GiB")
    planner, request = planner_of(llama_70b, *devices)
    plan = planner.plan(request)
    check(plan)
    assert not plan.fits
    assert plan.spilled_layers == 0
    planner, request = planner_of(llama_70b, *devices, layer_map="40")
    assert planner.plan(request).runs == [(0, 40), (1, 40)]


def test_a_layer_map_is_obeyed(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(
        llama_70b, "cuda:0=80GiB", "cuda:1=80GiB", "cpu=64GiB", layer_map="0:16;1:16"
    )
    plan = planner.plan(request)
    check(plan)
    assert plan.runs == [(0, 16), (1, 16), (2, 48)]
    assert not plan.fits, "48 layers take 83 GiB of the CPU's 64"
    planner, request = planner_of(llama_70b, "cuda:0=80GiB", layer_map="81")
    with pytest.raises(UsageError):
        planner.plan(request)


def test_quantized_weights_stay_packed_on_the_cpu(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cpu=64GiB", isq="q4k")
    plan = planner.plan(request)
    check(plan)
    assert plan.fits
    inner = sum(
        FORMATS["Q4_K"].size_bytes(shape)
        for name, shape in tensor_shapes(LLAMA_70B).items()
        if len(shape) == 2 and "layers" in name
    )
    outer = 2 * FORMATS["Q6_K"].size_bytes((128256, 8192))
    assert sum(t.weight_bytes for t in plan.breakdowns) == inner + outer + 4 * 161 * 8192


def test_the_length_of_the_model_is_the_limit(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cpu=512GiB", max_seq_len=1 << 20)
    plan = planner.plan(request)
    assert plan.workload.context_tokens == 131072
    assert any("beyond the model's 131072" in warning for warning in plan.warnings)


@pytest.mark.parametrize(("given", "warns"), [(None, False), (2048, False), (4096, True)])
def test_only_a_length_that_was_given_is_warned_about(
    tmp_path: Path, planner_of, given: int | None, warns: bool
) -> None:
    folder = write_headers(tmp_path / "short", {**SMALL_LLAMA, "max_position_embeddings": 2048})
    planner, request = planner_of(folder, "cpu=8GiB", max_seq_len=given)
    plan = planner.plan(request)
    assert plan.workload.context_tokens == 2048
    assert bool(plan.warnings) == warns


memories = st.integers(min_value=64, max_value=4096)


@examples(core=30, full=150)
def test_every_plan_is_consistent(small_llama: Path, planner_of, num_examples: int) -> None:
    how = settings(
        max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck)
    )

    @how
    @given(
        gpus=st.lists(memories, max_size=3),
        cpu=memories,
        length=st.sampled_from([1, 300, 4096, 32768]),
        strategy=st.sampled_from(["fill", "spread", "fastest"]),
        isq=st.sampled_from([None, "q4k", "q8_0"]),
        spill=st.booleans(),
        growth=st.integers(min_value=0, max_value=2048),
    )
    def tried(gpus, cpu, length, strategy, isq, spill, growth) -> None:
        wishes = {"max_seq_len": length, "strategy": strategy, "isq": isq, "cpu_spill": spill}

        def planned(extra: int) -> Plan:
            devices = [f"cuda:{i}={mib + extra}MiB" for i, mib in enumerate(gpus)]
            planner, request = planner_of(small_llama, *devices, f"cpu={cpu + extra}MiB", **wishes)
            return planner.plan(request)

        plan = planned(0)
        check(plan)
        if gpus and not spill:
            assert plan.spilled_layers == 0
        if plan.fits and strategy != "spread":
            assert planned(growth).fits, "more memory must not be worse"

    tried()


def test_mxfp4_and_fp8_keep_their_bits(tmp_path: Path, planner_of) -> None:
    """File bytes are those of the folder; in memory, FP8 has a scale for each 128 columns."""
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    for stored, config, growth in (
        ("MXFP4", GPT_OSS, 0),
        ("FP8", {**SMALL_LLAMA, "quantization_config": fp8}, 4 / 128),
    ):
        folder = write_few_bits(tmp_path / stored, config)
        planner, request = planner_of(folder, "cpu=64GiB")
        plan = planner.plan(request)
        check(plan)
        on_disk = (folder / "model.safetensors").stat().st_size
        assert plan.model.file_bytes == pytest.approx(on_disk, rel=1e-4)
        assert plan.weights_format.endswith(f" from {stored}")
        grown = sum(each.memory_bytes - each.file_bytes for each in conversions(plan))
        assert memory_bytes(plan) - on_disk == pytest.approx(grown, rel=1e-3, abs=1e-3 * on_disk)
        for each in conversions(plan):
            assert (each.stored, each.kept, each.verb) == ("FP8", "FP8_128", "repacked")
            assert each.memory_bytes == pytest.approx((1 + growth) * each.file_bytes, rel=1e-3)
            assert "FP8 is repacked to FP8_128" in conversion_text(plan)
        assert bool(conversions(plan)) == bool(growth)


def test_unchanged_weights_have_no_conversion_text(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cpu=256GiB")
    assert conversion_text(planner.plan(request)) == ""
    planner, request = planner_of(llama_70b, "cpu=256GiB", isq="q4k")
    text = "131 GiB in the files, 37.5 GiB in memory: BF16 is quantized to Q4_K and Q6_K"
    assert conversion_text(planner.plan(request)) == text
    planner, request = planner_of(llama_70b, "cpu=512GiB", dtype="f32")
    text = "131 GiB in the files, 263 GiB in memory: BF16 is widened to F32"
    assert conversion_text(planner.plan(request)) == text


@pytest.mark.parametrize(("tokens", "full", "further"), [(4096, 1, 1), (1024, 6, 6)])
def test_kv_of_a_further_token(
    tmp_path: Path, planner_of, tokens: int, full: int, further: int
) -> None:
    """Five of six layers attend to 1,024 tokens and store 511 more for a chunk of the prompt."""
    sizes = {"num_hidden_layers": 6, "sliding_window": 1024, "query_pre_attn_scalar": 64}
    folder = write_headers(
        tmp_path / "gemma", {**SMALL_LLAMA, **sizes, "model_type": "gemma3_text", "head_dim": 64}
    )
    planner, request = planner_of(folder, "cpu=64GiB", max_seq_len=tokens)
    plan = planner.plan(request)
    cell = 2 * 8 * 64 * 2
    cells = full * tokens + (6 - full) * 1535
    assert plan.kv_bytes_per_token == pytest.approx(cells * cell / tokens, rel=0.001)
    assert plan.kv_bytes_per_further_token == further * cell
    planner, request = planner_of(folder, "cpu=64GiB", max_seq_len=tokens + 64)
    assert sum(planner.plan(request).kv_bytes) - sum(plan.kv_bytes) == 64 * further * cell


def test_unified_memory_that_both_use(small_llama: Path, planner_of) -> None:
    devices = ("metal:0=8GiB", "cpu=12GiB")
    planner, request = planner_of(small_llama, *devices)
    plan = planner.plan(request)
    assert plan.visible_devices == [0]
    assert not plan.warnings
    planner, request = planner_of(small_llama, *devices, layer_map="6")
    plan = planner.plan(request)
    assert plan.visible_devices == [0, 1]
    (warning,) = plan.warnings
    assert re.fullmatch(r"metal:0 and cpu share one memory: .* [\d.]+ [MG]iB of 12.0 GiB", warning)


def test_weights_are_counted_once(
    llama_70b: Path, planner_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search makes many plans; a model may have 90,000 tensors."""
    planner, request = planner_of(llama_70b, "cpu=1500GiB")
    counted: list[object] = []
    monkeypatch.setattr(
        stored_weights, "main_format", lambda storage: counted.append(storage) or "BF16"
    )
    plans = [planner.plan(replace(request, max_batch_size=batch)) for batch in (1, 2, 3)]
    assert len(counted) == 1
    assert not any("storage" in vars(plan) for plan in plans)
    assert plans[0].storage == counted[0]
