"""Which heads, columns and rows each process has, and what it reads and allocates for them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import Workers, cluster_decoder, request_for
from ordered_reference import load_share, plans_of, require_whole
from safetensors.torch import load_file, save_file
from test_shared_exact import KINDS, LARGE, SIZES, model_of, shared_request, write_quantized

from mrs.distributed.shard import RankPlan, one_device_plan, rank_plans
from mrs.errors import MrsError, Unsupported, UsageError
from mrs.request import PagedRequest
from mrs.run.model_loader import ModelLoader
from mrs.source.weights import Weights
from support.model_files import LLAMA_70B, write_headers
from support.tiny_decoders import MIXED_CONFIGS

DELTA = MIXED_CONFIGS["delta"] | {"head_dim": 16}


def shapes(plan: RankPlan) -> dict[str, tuple[int, ...]]:
    return {each.name: each.shape for each in plan.planner.description.parameters}


def planned(tmp_path: Path, config: dict[str, Any], ranks: int, **changes: Any) -> list[RankPlan]:
    folder = write_headers(tmp_path / "model", config)
    return plans_of(request_for(folder, None, 0, **changes), ranks)


def test_three_processes_share_eight_heads(tmp_path: Path) -> None:
    plans = planned(tmp_path, {**LLAMA_70B, "num_hidden_layers": 1}, 3)
    found = [shapes(plan) for plan in plans]
    assert [each["layers.0.mixer.k.weight"][0] // 128 for each in found] == [3, 3, 2]
    assert [each["layers.0.mixer.q.weight"][0] // 128 for each in found] == [24, 24, 16]
    assert [each["layers.0.mixer.o.weight"] for each in found] == [
        (8192, 3072),
        (8192, 3072),
        (8192, 2048),
    ]
    assert sum(each["layers.0.ffn.down.weight"][1] for each in found) == 28672
    assert [plan.vocabulary for plan in plans] == [
        range(42752),
        range(42752, 85504),
        range(85504, 128256),
    ]


def test_quantized_blocks_are_cut_at_their_ends(tmp_path: Path) -> None:
    """With --isq q4k the columns of a share are whole blocks of 256."""
    for plan in planned(tmp_path, {**LLAMA_70B, "num_hidden_layers": 1}, 3, isq="q4k"):
        for name in ("mixer.o", "ffn.down"):
            assert shapes(plan)[f"layers.0.{name}.weight"][1] % 256 == 0
            assert plan.plan.storage[f"layers.0.{name}.weight"].format.name == "Q4_K"


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "biases", "sinks"])
def test_shares_are_read_once_and_completely(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes together read each byte of a matrix once; what is in each is read by each."""
    plans = plans_of(request_for(model_of(kind, tmp_path), None, 0), 3)
    assert_bytes_read(plans, monkeypatch)


def test_shares_of_blocks_are_read_once_and_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_quantized(tmp_path / "model.gguf", {**SIZES, **KINDS["llama"], **LARGE})
    assert_bytes_read(plans_of(request_for(file, None, 0), 3), monkeypatch)


def assert_bytes_read(plans: list[RankPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, Counter[int]] = {}
    read_into = Weights.read_into

    def record(self: Weights, target: memoryview, info: Any, start_bytes: int = 0) -> None:
        counts.setdefault(info.name, Counter()).update(
            range(start_bytes, start_bytes + len(target))
        )
        read_into(self, target, info, start_bytes)

    def record_rows(self: Weights, rows: Any, info: Any, starts: Iterable[int]) -> None:
        for row, start_bytes in zip(rows, starts, strict=True):
            record(self, row.data, info, start_bytes)

    monkeypatch.setattr(Weights, "read_into", record)
    monkeypatch.setattr(Weights, "read_rows_into", record_rows)
    for plan in plans:
        load_share(plan)
    tensors = plans[0].planner.checkpoint.tensors
    assert set(counts) == set(tensors)
    for name, info in tensors.items():
        # A bias that is added to a sum is in one process, another vector may be in all.
        times = {1} if len(info.shape) > 1 and "router" not in name else {1, len(plans)}
        if name.endswith(("mlp.gate.weight", "router.weight")):
            times = {len(plans)}
        # Of interleaved rows, those between are read, too.
        if "gate_up_proj" in name:
            times = {1, 2, 3, 4}
        assert len(counts[name]) == info.size_bytes
        assert set(counts[name].values()) <= times, name


@pytest.mark.full
def test_the_plan_says_what_each_process_allocates(workers: Workers, tmp_path: Path) -> None:
    """Weights and KV cache, to the byte."""
    model = model_of("qwen3_moe", tmp_path)
    with cluster_decoder(shared_request(model, workers.port, 3)) as (decoder, cluster):
        plans = cluster.plans
        space = decoder.new_space(plans[0].plan.workload.cache)
        allocated = sum(
            space.pools[0].count * layer.block_bytes
            for layer in space.pools[0].layers[: len(decoder.stack.layers)]
        )
        assert allocated == plans[0].kv_bytes
        blocks = space.pools[0].count
        for member, plan in zip(cluster.coordinator.members, plans[1:], strict=True):
            assert member.weight_bytes == plan.weight_bytes
            assert sum(each.size_bytes for each in member.caches) * blocks == plan.kv_bytes
        own = load_share(plans[0])
        assert sum(own.bytes_by_device().values()) == plans[0].weight_bytes
        assert plans[1].kv_bytes < plans[0].kv_bytes


def test_all_processes_have_as_many_blocks(tmp_path: Path) -> None:
    """A pool of so many MiB is that of all processes together."""
    folder = write_headers(tmp_path / "model", SIZES | KINDS["llama"])
    request = request_for(folder, None, 0, paged=PagedRequest(memory_mib=8))
    planner = ModelLoader(request).planner
    whole = one_device_plan(planner, request)
    plans = rank_plans(planner, whole, request, 3)
    assert {each.plan.workload.pool_blocks for each in plans} == {whole.workload.pool_blocks}
    assert sum(each.kv_bytes for each in plans) == sum(whole.kv_bytes)


@pytest.mark.parametrize(
    ("config", "ranks", "words"),
    [
        (SIZES | KINDS["llama"], 5, ["5 processes", "4 KV heads", "2 to 4"]),
        (SIZES | KINDS["llama"] | {"num_key_value_heads": 2}, 3, ["2 KV heads", "size 2"]),
        (SIZES | KINDS["llama"] | {"num_key_value_heads": 1}, 9, ["8 heads ", "2 to 8"]),
        (SIZES | DELTA | {"linear_num_key_heads": 1}, 2, ["1 key head ", "--workers"]),
        (SIZES | DELTA, 3, ["2 key heads ", "size 2"]),
        (SIZES | MIXED_CONFIGS["latent"], 9, ["8 heads ", "2 to 8"]),
    ],
)
def test_what_cannot_be_shared_is_named(
    config: dict[str, Any], ranks: int, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(MrsError) as raised:
        planned(tmp_path, {"num_hidden_layers": 3, **config, "vocab_size": 96}, ranks)
    assert isinstance(raised.value, UsageError | Unsupported)
    for word in words:
        assert word in str(raised.value)


def test_blocks_may_need_several_heads(tmp_path: Path) -> None:
    """Four heads of 64 columns are one block of Q4_K."""
    config = SIZES | KINDS["llama"] | {"head_dim": 64, "num_key_value_heads": 8}
    config |= {"hidden_size": 512, "intermediate_size": 512}
    with pytest.raises(UsageError, match="3 processes cannot share 8 KV heads in groups of 4"):
        planned(tmp_path, config, 3, isq="q4k")


def test_weights_in_tiles_with_scales_are_shared(tmp_path: Path) -> None:
    """FP8: a tile of 128 rows and columns has a scale in another tensor."""
    folder = model_of("llama", tmp_path, **LARGE)
    tensors = load_file(folder / "model.safetensors")
    for name in [each for each in tensors if "_proj" in each]:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tiles = [-(-size // 128) for size in tensors[name].shape]
        tensors[f"{name}_scale_inv"] = 0.5 + torch.rand(tiles)
    save_quantized(folder, tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    require_whole(request_for(folder, None, 0), 3, 0.01)


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_in_blocks_of_four_bits_are_shared(ranks: int, tmp_path: Path) -> None:
    """MXFP4, whose rows of gate and up alternate: rows that a step skips are packed, too."""
    folder = model_of("sinks", tmp_path, intermediate_size=128)
    tensors = load_file(folder / "model.safetensors")
    chance = torch.Generator().manual_seed(0)
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        blocks = torch.randint(256, (*shape, 16), generator=chance, dtype=torch.uint8)
        scales = torch.randint(118, 124, shape, generator=chance, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_quantized(folder, tensors, {"quant_method": "mxfp4"})
    require_whole(request_for(folder, None, 0), ranks, 1e-5)


def save_quantized(folder: Path, tensors: dict[str, torch.Tensor], method: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    save_file(tensors, folder / "model.safetensors")
