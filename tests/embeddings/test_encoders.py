"""Encoders give the hidden states of transformers, alone and among others, and fit their plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from encoder_cases import CASES, Encoded
from torch import Tensor

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.architecture.pooler import PoolingKind
from mrs.devices.probe import probe_devices
from mrs.engine.engine import Engine
from mrs.engine.pooling import Pooling
from mrs.engine.profile.run import profile_run
from mrs.engine.sequence import SequenceRequest
from mrs.kernels.cpu.library import is_available
from mrs.kernels.workspace import attention as workspace
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import Plan, make_plan
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.source.find import open_checkpoint
from support.engines import make_engine
from support.planned_decoder import planned_decoder

CPU = torch.device("cpu")
#: What bf16 may change, and more where scores are not scaled: transformers loses as much.
IN_BF16, MORE_IN_BF16 = 2e-2, {"embedding_gemma2_text": 0.2}
#: One of each kind of attention that makes scores itself.
BY_DISTANCE = [each for each in CASES if each.id in ("mpnet-default", "deberta-v2-default")]
Loaded = tuple[Description, Plan, ModelWeights, Decoder]


def load(
    folder: object,
    dtype: Literal["f32", "bf16"] = "f32",
    isq: str | None = None,
    devices: Sequence[torch.device] = (CPU,),
) -> Loaded:
    source = ModelSource(str(folder), "safetensors")
    checkpoint = open_checkpoint(source)
    description = describe(checkpoint)
    request = RunRequest(source, dtype=dtype, isq=isq, cpu=True)
    host = probe_devices(what_if=(), cpu_only=True)
    packs = isq is not None and is_available()
    plan = make_plan(request, ModelWeightsInfo(checkpoint, description), host, cpu_packs=packs)
    return description, plan, *planned_decoder(checkpoint, description, plan, devices)


@torch.inference_mode()
def hidden_states(decoder: Decoder, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """The states of each text, all computed in one batch."""
    space = decoder.new_space(CacheSize(128, len(texts), 128))
    inputs = [SequenceInput(space.new(), ids) for ids in texts]
    found: list[Tensor] = []
    batch = forward_batch(inputs)
    decoder.forward(batch, [each.cache for each in inputs], observe=found.append)
    assert decoder.pooler is not None
    states = decoder.pooler.states(found[0])
    return list(states.cpu().float().split([len(ids) for ids in texts]))


def embed(engine: Engine, ids: Sequence[Sequence[int]], kind: PoolingKind) -> list[list[float]]:
    requests = [SequenceRequest(each, Sampling(), pooling=Pooling(kind)) for each in ids]
    sequences = [engine.add(request) for request in requests]
    while not all(sequence.is_finished for sequence in sequences):
        engine.step()
    return [sequence.pooling.values for sequence in sequences if sequence.pooling is not None]


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.table("hidden states")
def test_hidden_states_are_those_of_transformers(encoded: Encoded) -> None:
    description, *_, decoder = load(encoded.folder)
    assert not description.warnings
    assert difference(hidden_states(decoder, [encoded.ids])[0], encoded.hidden) < 1e-4


@pytest.mark.few(16)
@pytest.mark.table("batch")
def test_a_text_does_not_depend_on_its_batch(encoded: Encoded) -> None:
    *_, decoder = load(encoded.folder)
    others = [encoded.ids[:5], encoded.ids, encoded.ids[20:50]]
    found = hidden_states(decoder, others)[1]
    assert difference(found, encoded.hidden) < 1e-4
    engine = make_engine(decoder, planned_tokens=128, context_tokens=128, max_seqs=4)
    together = embed(engine, others, "mean")
    for ids, vector in zip(others, together, strict=True):
        (alone,) = embed(engine, [ids], "mean")
        assert vector == pytest.approx(alone, abs=1e-6)


@pytest.mark.few(8)
@pytest.mark.table("two devices")
def test_split_over_two_logical_devices(encoded: Encoded) -> None:
    *_, decoder = load(encoded.folder, devices=(CPU, torch.device("cpu", 0)))
    assert difference(hidden_states(decoder, [encoded.ids])[0], encoded.hidden) < 1e-4


@pytest.mark.few(10)
@pytest.mark.table("bf16")
def test_bf16(encoded: Encoded) -> None:
    *_, decoder = load(encoded.folder, dtype="bf16")
    most = MORE_IN_BF16.get(encoded.case.family, IN_BF16)
    assert difference(hidden_states(decoder, [encoded.ids])[0], encoded.hidden) < most


@pytest.mark.few(8)
@pytest.mark.table("whole texts")
def test_a_text_is_never_cut_into_chunks(encoded: Encoded) -> None:
    *_, decoder = load(encoded.folder)
    engine = make_engine(decoder, planned_tokens=128, context_tokens=128, chunk_tokens=7)
    (vector,) = embed(engine, [encoded.ids], "mean")
    mean = encoded.hidden.double().mean(0)
    assert vector == pytest.approx((mean / mean.norm()).tolist(), abs=1e-4)


@pytest.mark.parametrize("encoded", BY_DISTANCE, ids=lambda case: case.id, indirect=True)
def test_heads_attend_some_at_a_time(encoded: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do in long texts: the memory of scores is bounded, and planned so."""
    monkeypatch.setattr(workspace, "SCORES_AT_ONCE", 3 * 128**2)
    _, plan, _, decoder = load(encoded.folder)
    (terms,) = plan.breakdowns
    measured = profile_run(decoder, plan.workload.cache)
    assert 0 < measured.activation_bytes[CPU] <= terms.activations.expected
    monkeypatch.setattr(workspace, "SCORES_AT_ONCE", 3 * len(encoded.ids) ** 2)
    assert difference(hidden_states(decoder, [encoded.ids])[0], encoded.hidden) < 1e-4


@pytest.mark.few(5)
@pytest.mark.values
@pytest.mark.table("planned bytes")
@pytest.mark.parametrize(("dtype", "isq"), [("f32", None), ("bf16", None), ("bf16", "q8_0")])
def test_planned_bytes_are_allocated(
    encoded: Encoded, dtype: Literal["f32", "bf16"], isq: str | None
) -> None:
    description, plan, weights, decoder = load(encoded.folder, dtype, isq)
    (terms,) = plan.breakdowns
    assert weights.bytes_by_device() == {CPU: terms.weight_bytes}
    assert set(plan.kv_bytes) == {0}
    assert decoder.new_cache(128, 128).nbytes == 0
    measured = profile_run(decoder, plan.workload.cache)
    assert measured.kv_bytes.get(CPU, 0) == 0
    assert 0 < measured.activation_bytes[CPU] <= terms.activations.expected
    assert "head.weight" not in {parameter.name for parameter in description.parameters}
