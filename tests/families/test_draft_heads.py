"""The logits of draft heads: those of their published code in float64, in every container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_cases import CASES
from running import CPU, difference
from safetensors.torch import load_file, save_file
from torch import Tensor

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.speed.draft_gain import draft_cost
from mrs.request import ModelSource, RunRequest
from mrs.run.planned_model import PlannedModel
from mrs_cli.render.plan.plan_facts import draft_model
from support.draft_heads import load_headed, make_headed_model

IDS = [7, 12, 3, 150, 44, 9, 9, 81, 23, 60, 5, 118]
KINDS = [
    "qwen3_next-default",
    "qwen3_5_text-default",
    "qwen3_5_moe_text-default",
    "deepseek_v3-default",
    "deepseek_v32-default",
    "ernie4_5_moe-default",
    "exaone_moe-default",
    "glm4-default",
    "glm4_moe-default",
    "glm4_moe_lite-default",
    "glm_moe_dsa-default",
    "glm_moe_dsa-lent",
    "hy_v3-default",
    "mimo_v2_flash-default",
    "nemotron_h-experts",
    "qwen2-default",
]
#: Heads that GGUF files do not have, or not in a form that is agreed upon.
NOT_IN_GGUF = {
    "deepseek_v32-default",
    "ernie4_5_moe-default",
    "glm_moe_dsa-lent",
    "nemotron_h-experts",
    "qwen2-default",
}


@torch.inference_mode()
def read(decoder: Decoder, ids: list[int], states: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits after each token, and the states that a head reads next."""
    space = decoder.new_space(CacheSize(64, 1, 64))
    cache, kept = space.new(), []
    fed = SequenceInput(cache, ids, len(ids), logits_rows=range(len(ids)))
    batch = replace(forward_batch([fed]), states=states)
    return decoder.forward(batch, [cache], keep=kept.append), kept[0]


@pytest.mark.few("qwen3_5_text-default-safetensors", "glm4_moe-default-gguf")
@pytest.mark.parametrize(
    ("case_id", "container"),
    [
        (case_id, container)
        for case_id in KINDS
        for container in ("safetensors", "gguf")
        if container == "safetensors" or case_id not in NOT_IN_GGUF
    ],
)
def test_logits_are_those_of_the_published_code(
    case_id: str, container: str, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.id == case_id)
    gguf = case.gguf if container == "gguf" else None
    truth = make_headed_model(case.family, case.config, tmp_path, gguf)
    loaded = load_headed(truth)
    head = loaded.draft.decoders[0]
    loaded.target.keeps_normed = head.spec.input.reads_normed
    _, states = read(loaded.target, IDS, None)
    expected_states = truth.states(IDS)
    assert difference(states, expected_states) < 1e-4
    expected, own = truth.read(IDS[1:], expected_states[:-1])
    logits, kept = read(head, IDS[1:], states[:-1])
    assert difference(logits, expected) < 1e-4
    assert difference(kept, own) < 1e-4
    assert not any("not used" in line for line in loaded.model.plan.warnings)


@pytest.mark.few("qwen3_next-default-1", "deepseek_v3-default-1", "mimo_v2_flash-default-3")
@pytest.mark.parametrize(
    ("case_id", "heads"), [*((case_id, 1) for case_id in KINDS), ("mimo_v2_flash-default", 3)]
)
def test_heads_take_what_was_planned(case_id: str, heads: int, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == case_id)
    truth = make_headed_model(case.family, case.config, tmp_path, heads=heads)
    loaded = load_headed(truth, max_seq_len=300)
    plan, without = loaded.model.plan, replace(loaded.model.request, mtp=False)
    assert plan.draft is not None
    (planned,) = [each.draft for each in plan.breakdowns]
    assert planned is not None
    alone = PlannedModel(without).plan.breakdowns[0]
    assert plan.breakdowns[0].total == alone.total + planned.total
    parameters = plan.draft.parameters
    own = {p.name for p in parameters if not p.is_shared}
    sizes = {name: plan.draft.storage[name].size_bytes for name in own}
    shared = {p.name for p in parameters} - own
    assert shared == {"embedding.weight", loaded.target.spec.head_weight}
    assert planned.weight_bytes == sum(sizes.values())
    assert loaded.weights.bytes_by_device() == {CPU: plan.breakdowns[0].weight_bytes}
    spaces = [each.new_space(loaded.draft.cache_size) for each in loaded.draft.decoders]
    assert len(spaces) == heads
    ids = [*range(150)] * 2
    states = torch.randn(len(ids), 64)

    def step() -> None:
        caches, kv_bytes = [space.new() for space in spaces], 0
        for head, space, cache in zip(loaded.draft.decoders, spaces, caches, strict=True):
            fed, kept = SequenceInput(cache, ids, len(ids), logits_rows=[len(ids) - 1]), []
            batch = replace(forward_batch([fed]), states=states.clone())
            head.forward(batch, [cache], keep=kept.append)
            kv_bytes += space.allocated_bytes([cache])[CPU]
        assert kv_bytes == planned.kv_bytes

    with torch.inference_mode():
        assert 0 < peak_bytes(step, CPU) - planned.kv_bytes <= planned.activations.expected


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    case = next(case for case in CASES if case.id == "glm4_moe-default")
    truth = make_headed_model(case.family, case.config, tmp_path_factory.mktemp("mixture"))
    return ModelSource(str(truth.path), "safetensors")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "its drafts would save no time"),
        ({"mtp": True, "kv_cache": False}, "there is no KV cache"),
        ({"mtp": True, "cpu": False, "devices": ("4090",)}, "it runs on CPUs only so far"),
        ({"mtp": True}, None),
        ({"mtp": False}, ""),
        ({"mtp": True, "speculate": "off"}, ""),
    ],
)
def test_a_head_that_is_not_used_is_named(
    mixture: ModelSource, settings: dict[str, Any], reason: str | None
) -> None:
    """Unless it was switched off. A head of one layer is dear for a model of two."""
    plan = PlannedModel(RunRequest(mixture, **{"cpu": True, "max_seq_len": 64, **settings})).plan
    assert (plan.draft is None) is (reason is not None)
    assert plan.without_head == (reason or "")
    lines = [line for line in plan.warnings if "draft head" in line]
    is_said = reason and settings.get("mtp")
    assert lines == ([f"the model's draft head is not used: {reason}"] if is_said else [])


def test_further_rows_of_a_mixture_read_further_experts(mixture: ModelSource) -> None:
    plan = PlannedModel(RunRequest(mixture, cpu=True, max_seq_len=64, mtp=True)).plan
    assert plan.draft is not None
    cost = draft_cost(plan.speed, plan.draft.speed)
    all_experts = replace(plan.speed, chosen_share=1.0)
    dense = draft_cost(all_experts, plan.draft.speed)
    assert cost.rows(4) > dense.rows(4) > 1


#: Cases of several heads, and whether each reads what the one before computed.
SEVERAL = {"mimo_v2_flash-default": False, "deepseek_v3-default": True, "glm4_moe-default": True}


@pytest.mark.few("mimo_v2_flash-default-gguf", "deepseek_v3-default-safetensors")
@pytest.mark.parametrize("container", ["safetensors", "gguf"])
@pytest.mark.parametrize("case_id", SEVERAL)
def test_each_head_reads_a_token_further(case_id: str, container: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == case_id)
    gguf = case.gguf if container == "gguf" else None
    truth = make_headed_model(case.family, case.config, tmp_path, gguf, heads=3)
    loaded = load_headed(truth)
    assert len(loaded.draft.decoders) == 3
    states = truth.states(IDS[:-3])
    for head, decoder in enumerate(loaded.draft.decoders):
        assert decoder.spec.input.chained is SEVERAL[case_id]
        ids = IDS[1 + head : len(IDS) - 2 + head]
        expected, own = truth.read(ids, states, head)
        logits, kept = read(decoder, ids, states.float())
        assert difference(logits, expected) < 1e-4
        assert difference(kept, own) < 1e-4
        states = own if SEVERAL[case_id] else states
    plan = loaded.model.plan
    assert not any("not used" in line for line in plan.warnings)
    assert draft_model(plan).startswith("3 draft heads: ")
    assert plan.draft_gain is not None
    assert plan.draft_gain.factor >= 1, "where none saves time, there are hardly any"


def test_an_incomplete_further_head_is_named(tmp_path: Path) -> None:
    """The one before it is used."""
    case = next(case for case in CASES if case.id == "mimo_v2_flash-default")
    make_headed_model(case.family, case.config, tmp_path, heads=2)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.mtp.layers.1.eh_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    source = ModelSource(str(tmp_path), "safetensors")
    plan = PlannedModel(RunRequest(source, cpu=True, max_seq_len=64, mtp=True)).plan
    assert plan.draft is not None
    assert plan.draft.model.layers == 1
    left = sum(name.startswith("model.mtp.layers.1.") for name in tensors)
    assert f"{left} tensors are not used: model.mtp.layers.1.*" in plan.warnings


def test_without_one_of_its_tensors_a_head_is_left_out(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == "qwen3_5_text-default")
    make_headed_model(case.family, case.config, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["mtp.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    source = ModelSource(str(tmp_path), "safetensors")
    plan = PlannedModel(RunRequest(source, cpu=True, max_seq_len=64, mtp=True)).plan
    assert plan.draft is None
    assert any("tensors are not used: mtp.*" in line for line in plan.warnings)
