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
    head = loaded.draft.decoder
    loaded.target.keeps_normed = head.spec.input.reads_normed
    _, states = read(loaded.target, IDS, None)
    expected_states = truth.states(IDS)
    assert difference(states, expected_states) < 1e-4
    expected, own = truth.read(IDS[1:], expected_states[:-1])
    logits, kept = read(head, IDS[1:], states[:-1])
    assert difference(logits, expected) < 1e-4
    assert difference(kept, own) < 1e-4
    assert not any("not used" in line for line in loaded.model.plan.warnings)


@pytest.mark.few("qwen3_next-default", "deepseek_v3-default")
@pytest.mark.parametrize("case_id", KINDS)
def test_a_head_takes_what_was_planned(case_id: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == case_id)
    loaded = load_headed(make_headed_model(case.family, case.config, tmp_path), max_seq_len=300)
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
    head, size = loaded.draft.decoder, loaded.draft.cache_size
    space = head.new_space(size)
    ids = [*range(150)] * 2
    states = torch.randn(len(ids), 64)

    def step() -> None:
        cache, kept = space.new(), []
        fed = SequenceInput(cache, ids, len(ids), logits_rows=[len(ids) - 1])
        batch = replace(forward_batch([fed]), states=states.clone())
        head.forward(batch, [cache], keep=kept.append)
        assert space.allocated_bytes([cache]) == {CPU: planned.kv_bytes}

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
    assert cost.rows(4) > cost._replace(experts=0.0).rows(4) > 1


def test_further_heads_are_named(tmp_path: Path) -> None:
    """MiMo V2 has three, of which the first drafts all tokens."""
    case = next(case for case in CASES if case.id == "mimo_v2_flash-default")
    make_headed_model(case.family, case.config, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    first = {name: each for name, each in tensors.items() if name.startswith("model.mtp.layers.0.")}
    for index in (1, 2):
        others = {name.replace(".0.", f".{index}.", 1): each for name, each in first.items()}
        tensors |= {name: each.clone() for name, each in others.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    source = ModelSource(str(tmp_path), "safetensors")
    plan = PlannedModel(RunRequest(source, cpu=True, max_seq_len=64, mtp=True)).plan
    assert plan.draft is not None
    unused = f"{2 * len(first)} tensors are not used: model.mtp.layers.1.*, model.mtp.layers.2.*"
    assert unused in plan.warnings


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
