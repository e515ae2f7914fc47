"""The pool of KV blocks: its size in each form, computed by hand, and when there is no pool."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mrs.errors import DoesNotFit, Unsupported, UsageError
from mrs.plan.plan import Plan
from mrs.plan.report.conversations import conversations_at_once
from mrs.plan.report.document import SCHEMA, dumps, to_document
from mrs.plan.report.replay import contradictions, replay
from mrs.plan.report.suggestions import nearest_changes
from mrs.request import PagedRequest, RunRequest
from support.model_files import LLAMA_70B, write_headers

MIB = 1024**2
GIB = 1024**3
#: 32 layers of 8 KV heads x 128, keys and values, 2 bytes: 4096 bytes a token and layer.
SMALL = {
    **LLAMA_70B,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
TOKEN_BYTES = 32 * 4096


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 8 billion parameters, of which there are headers only."""
    return write_headers(tmp_path_factory.mktemp("models") / "small", SMALL, 4)


@pytest.fixture
def planned(small: Path, planner_of):
    def plan(*devices: str, paged: PagedRequest | None = None, **wishes: Any) -> Plan:
        planner, request = planner_of(small, *devices, **wishes)
        return planner.plan(request if paged is None else replace(request, paged=paged))

    return plan


def test_tokens_are_rounded_up_to_whole_blocks(planned) -> None:
    plan = planned("cuda:0=24GiB", paged=PagedRequest(context_tokens=8193, block_tokens=32))
    assert plan.workload.pool_blocks == 257
    assert plan.breakdowns[0].kv_bytes == sum(plan.kv_bytes) == 257 * 32 * TOKEN_BYTES
    assert not plan.spilled_layers


@pytest.mark.parametrize("block_tokens", [8, 16, 32, 64])
def test_an_amount_is_never_exceeded(planned, block_tokens: int) -> None:
    paged = PagedRequest(memory_mib=1000, block_tokens=block_tokens)
    for device in ("cuda:0=24GiB", "cpu=64GiB"):
        plan = planned(device, paged=paged)
        assert plan.workload.pool_blocks == 1000 * MIB // (block_tokens * TOKEN_BYTES)
        assert sum(plan.kv_bytes) <= 1000 * MIB < sum(plan.kv_bytes) + block_tokens * TOKEN_BYTES


def test_an_amount_is_no_more_than_the_first_device_has(planned) -> None:
    devices = "cuda:0=2GiB", "cuda:1=48GiB", "cpu=64GiB"
    plan = planned(*devices, paged=PagedRequest(memory_mib=9000))
    least = (2 * GIB - 512 * MIB) // (64 * TOKEN_BYTES)
    assert least - 60 < plan.workload.pool_blocks < least


def test_a_fraction_takes_what_the_weights_leave(planned) -> None:
    usable = 24 * GIB - 512 * MIB
    for paged, fraction in ((None, 0.9), (PagedRequest(memory_fraction=0.8), 0.8)):
        plan = planned("cuda:0=24GiB", "cpu=64GiB", paged=paged)
        taken = plan.breakdowns[0].weight_bytes + plan.breakdowns[0].kv_bytes
        taken += plan.breakdowns[0].activations.high
        assert 0 <= int(usable * fraction) - taken < 64 * TOKEN_BYTES
        assert plan.workload.pool_blocks > 64
        assert not plan.spilled_layers


def test_a_model_larger_than_the_first_device_still_gets_its_length(planned) -> None:
    devices = "cuda:0=12GiB", "cuda:1=12GiB"
    assert not planned(*devices).workload.cache.is_pool  # it would limit sequences to that length
    plan = planned(*devices, paged=PagedRequest(pool=True), max_batch_size=3)
    assert plan.workload.pool_blocks == 3 * 4096 // 64
    assert not planned("cuda:0=24GiB", layer_map="0:32").workload.cache.is_pool
    assert [count for _, count in plan.runs] != [32]
    assert plan.fits


@pytest.mark.parametrize("device", ["metal:0=32GiB", "cpu=64GiB"])
def test_where_others_use_the_memory_a_pool_holds_what_is_planned_for(planned, device) -> None:
    for fraction in (0.9, None):
        paged = PagedRequest(pool=True, memory_fraction=fraction)
        assert planned(device, paged=paged, max_batch_size=2).workload.pool_blocks == 2 * 4096 // 64
    plan = planned(device, paged=PagedRequest(memory_fraction=0.9))
    assert not plan.workload.cache.is_pool
    assert plan.warnings == ("--pa-gpu-mem-usage has no effect: it is for CUDA GPUs",)


def test_there_is_a_pool_on_cuda_or_where_it_is_asked_for(planned) -> None:
    for device, default in (("cuda:0=24GiB", True), ("metal:0=32GiB", False), ("cpu=64GiB", False)):
        assert planned(device).workload.cache.is_pool is default
        assert planned(device, paged=PagedRequest(context_tokens=5000)).workload.cache.is_pool
        without = planned(device, paged=PagedRequest(pool=False, context_tokens=5000))
        assert not without.workload.cache.is_pool
        assert sum(without.kv_bytes) == 4096 * TOKEN_BYTES
        assert "--pa-ctxt-len has no effect with --no-paged-attn" in without.warnings


@pytest.mark.few(3)
@pytest.mark.parametrize("layer_map", [None, "0:16"])
@pytest.mark.parametrize("strategy", ["fill", "spread", "fastest"])
def test_layers_on_the_cpu_end_the_pool_and_are_placed_again(
    planned, strategy: str, layer_map: str | None
) -> None:
    devices = "cuda:0=12GiB", "cpu=64GiB"
    wishes = {"strategy": strategy, "layer_map": layer_map}
    paged = planned(*devices, paged=PagedRequest(context_tokens=32768), **wishes)
    plain = planned(*devices, paged=PagedRequest(pool=False), **wishes)
    assert paged.spilled_layers
    assert replace(paged, warnings=()) == replace(plain, warnings=())
    reason = "the KV cache has no fixed pool, because some layers are on the CPU"
    assert reason in paged.warnings
    assert reason not in planned(*devices, **wishes).warnings


def test_a_pool_without_the_cpu_is_kept_or_does_not_fit(planned) -> None:
    paged = PagedRequest(context_tokens=131072)
    plan = planned("cuda:0=24GiB", "cpu=64GiB", paged=paged, cpu_spill=False)
    assert plan.workload.pool_blocks == 2048
    assert not plan.fits


def test_what_counts_where_several_sizes_are_given(planned) -> None:
    paged = PagedRequest(context_tokens=6400, memory_fraction=0.5, memory_mib=7)
    plan = planned("cpu=64GiB", paged=paged)
    assert plan.workload.pool_blocks == 100
    assert [line for line in plan.warnings if "takes precedence" in line] == [
        "--pa-gpu-mem-usage has no effect: --pa-ctxt-len takes precedence",
        "--pa-gpu-mem has no effect: --pa-ctxt-len takes precedence",
    ]


def test_a_pool_smaller_than_the_planned_length(planned) -> None:
    plan = planned("cpu=64GiB", paged=PagedRequest(context_tokens=1000))
    assert plan.workload.cache.total_tokens == 1024
    assert (
        "the KV cache has 1024 tokens, so no sequence can have the 4096 planned ones"
        in plan.warnings
    )


def test_no_more_blocks_than_a_run_could_use(planned) -> None:
    wishes = {"max_seqs": 1, "prefix_cache_n": 0}
    plan = planned("cuda:0=80GiB", **wishes)
    assert plan.workload.cache.total_tokens == SMALL["max_position_embeddings"]


def test_less_than_a_block(planned) -> None:
    with pytest.raises(DoesNotFit, match="7 MiB are less than one block of 64 tokens") as caught:
        planned("cpu=64GiB", paged=PagedRequest(memory_mib=7))
    assert caught.value.missing_bytes == 64 * TOKEN_BYTES - 7 * MIB


@pytest.mark.parametrize("block_tokens", [0, -8, 1, 24, 48, 128])
def test_blocks_that_there_are_not(block_tokens: int) -> None:
    with pytest.raises(UsageError, match="give 8, 16, 32 or 64"):
        PagedRequest(block_tokens=block_tokens)


def test_types_that_there_are_not() -> None:
    with pytest.raises(Unsupported, match="give auto, f16, bf16, f32, f8e4m3, q8_0 or q4_0"):
        PagedRequest(cache_type="q8")  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="--cache-type-v"):
        PagedRequest(value_cache_type="q5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("types", "bits"),
    [
        ({"cache_type": "q8_0"}, (8.5, 8.5)),
        ({"cache_type": "q4_0"}, (4.5, 4.5)),
        ({"cache_type": "q8_0", "value_cache_type": "q4_0"}, (8.5, 4.5)),
    ],
)
def test_quantized_keys_and_values(planned, types: dict[str, Any], bits: tuple[float, ...]) -> None:
    exact = planned("cpu=64GiB", paged=PagedRequest(cache_type="f32"))
    plan = planned("cpu=64GiB", paged=PagedRequest(**types))
    tokens, chunk = plan.workload.context_tokens, plan.workload.chunk_tokens
    rests = 8.5 * (3 * 64 + chunk) / tokens  # of one sequence's first and last blocks, and a chunk
    assert sum(plan.kv_bytes) * 64 == sum(exact.kv_bytes) * (sum(bits) + 2 * rests)


def test_quantized_keys_that_there_are_not(planned) -> None:
    with pytest.raises(Unsupported, match="type q8_0 is for CPUs, not for"):
        planned("cuda:0=24GiB", "cpu=64GiB", paged=PagedRequest(cache_type="q8_0"))
    with pytest.raises(Unsupported, match="type q4_0 has no blocks of 32 tokens"):
        PagedRequest(value_cache_type="q4_0", block_tokens=32)
    with pytest.raises(Unsupported, match="keys of type q8_0 with values of type bf16"):
        planned("cpu=64GiB", paged=PagedRequest(key_cache_type="q8_0"))


def test_a_cache_of_8_bits_is_for_nvidia_gpus(planned) -> None:
    paged = PagedRequest(context_tokens=640, cache_type="f8e4m3")
    narrow = planned("cuda:0=24GiB", "cpu=64GiB", paged=paged)
    plain = planned("cuda:0=24GiB", "cpu=64GiB", paged=replace(paged, cache_type="auto"))
    assert 2 * sum(narrow.kv_bytes) == sum(plain.kv_bytes)
    with pytest.raises(Unsupported, match="for NVIDIA GPUs, not for cpu"):
        planned("cpu=64GiB", paged=paged)


def test_the_type_of_the_cache(planned) -> None:
    plain = planned("cuda:0=24GiB", "cpu=64GiB", paged=PagedRequest(context_tokens=640))
    wide = planned(
        "cuda:0=24GiB", "cpu=64GiB", paged=PagedRequest(context_tokens=640, cache_type="f32")
    )
    assert (plain.cache_format.name, wide.cache_format.name) == ("BF16", "F32")
    assert sum(wide.kv_bytes) == 2 * sum(plain.kv_bytes)
    assert wide.breakdowns[0].weight_bytes == plain.breakdowns[0].weight_bytes


@pytest.mark.parametrize(
    ("devices", "options", "expected"),
    [
        (["cpu=64GiB"], {}, "BF16"),
        (["cpu=64GiB"], {"isq": "q4k"}, "F16"),
        (["cpu=64GiB"], {"isq": "q4k", "dtype": "bf16"}, "BF16"),
        (["cpu=64GiB"], {"isq": "q4k", "dtype": "f32"}, "F32"),
        (["cpu=64GiB"], {"isq": "q4k", "paged": PagedRequest(cache_type="bf16")}, "BF16"),
        (["cuda:0=24GiB", "cpu=64GiB"], {"isq": "q4k"}, "BF16"),
    ],
)
def test_keys_of_a_quantized_model_are_f16_on_a_cpu(
    planned, devices: list[str], options: dict[str, Any], expected: str
) -> None:
    assert planned(*devices, **options).cache_format.name == expected


def test_windows_take_what_the_sequences_of_the_pool_need(tmp_path: Path, planner_of) -> None:
    config = {**SMALL, "model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 128}
    folder = write_headers(tmp_path / "window", config, 1)
    planner, request = planner_of(folder, "cpu=64GiB", max_seq_len=4096)
    plan = planner.plan(replace(request, paged=PagedRequest(context_tokens=3 * 4096)))
    window_blocks = (127 + 512 - 2) // 64 + 2
    assert plan.kv_bytes == (3 * window_blocks * 64 * 4096,) * 2


def test_a_saved_pool_comes_back(planned, small: Path, planner_of, tmp_path: Path) -> None:
    devices = "cuda:0=24GiB", "cpu=64GiB"
    paged = PagedRequest(memory_mib=900, block_tokens=16, cache_type="f16")
    for wish in (
        paged, PagedRequest(pool=False), PagedRequest(), PagedRequest(cache_type="f8e4m3")
    ):  # fmt: skip
        plan = planned(*devices, paged=wish)
        (tmp_path / "plan.json").write_text(dumps(to_document(plan)))
        planner, request = planner_of(small, *devices)
        found = replay(planner, request, tmp_path / "plan.json")
        assert replace(found, warnings=()) == replace(plan, warnings=())
    other = PagedRequest(pool=False, context_tokens=64, block_tokens=32, cache_type="f32")
    request = replace(request, paged=other)
    assert dict(contradictions(request, planned(*devices, paged=paged))) == {
        "--pa-ctxt-len": "a pool of 7200 tokens",
        "--no-paged-attn": "a pool of 7200 tokens",
        "--pa-blk-size 32": "16",
        "--pa-cache-type f32": "f16",
    }


def test_the_document_says_how_many_blocks(planned) -> None:
    plan = planned("cuda:0=24GiB", paged=PagedRequest(context_tokens=5000, block_tokens=16))
    document = to_document(plan)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["planned"]["kv_cache"] == {
        "dtype": "BF16", "block_tokens": 16, "blocks": 313, "tokens": 5008, "grows": False,
    }  # fmt: skip


def test_advice_and_conversations_know_the_pool(small: Path, planner_of) -> None:
    planner, request = planner_of(small, "cpu=24GiB")
    large = replace(request, paged=PagedRequest(context_tokens=131072))
    changes = nearest_changes(planner, large, planner.plan(large))
    (change,) = [each for each in changes if each.flags.startswith("--pa-ctxt-len ")]
    tokens = change.flags.split()[1]
    assert change.plan.fits
    more = replace(request, paged=PagedRequest(context_tokens=int(tokens) + 64))
    assert not planner.plan(more).fits
    fitting: RunRequest = replace(request, paged=PagedRequest(context_tokens=3 * 4096 + 64))
    assert conversations_at_once(planner, fitting, planner.plan(fitting)) == 3
