"""The logits of draft heads: those of their published code in float64, in every container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parity_cases import CASES
from running import CPU, difference
from torch import Tensor

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from mrs.run.planned_model import PlannedModel
from support.draft_heads import load_headed, make_headed_model

IDS = [7, 12, 3, 150, 44, 9, 9, 81, 23, 60, 5, 118]
KINDS = [
    "qwen3_next-default",
    "qwen3_5_text-default",
    "qwen3_5_moe_text-default",
    "deepseek_v3-default",
    "glm4_moe-default",
]


@torch.inference_mode()
def read(decoder: Decoder, ids: list[int], states: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits after each token, and the states that a head reads next."""
    space = decoder.new_space(CacheSize(64, 1, 64))
    cache, kept = space.new(), []
    fed = SequenceInput(cache, ids, len(ids), logits_rows=range(len(ids)))
    batch = replace(forward_batch([fed]), states=states)
    return decoder.forward(batch, [cache], keep=kept.append), kept[0]


@pytest.mark.few("qwen3_5_text-default-safetensors", "glm4_moe-default-gguf")
@pytest.mark.parametrize("container", ["safetensors", "gguf"])
@pytest.mark.parametrize("case_id", KINDS)
def test_logits_are_those_of_the_published_code(
    case_id: str, container: str, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.id == case_id)
    gguf = case.gguf if container == "gguf" else None
    truth = make_headed_model(case.family, case.config, tmp_path, gguf)
    loaded = load_headed(truth)
    head = loaded.draft.decoder
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
    assert {p.name for p in parameters} - own == {"embedding.weight", "head.weight"}
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
