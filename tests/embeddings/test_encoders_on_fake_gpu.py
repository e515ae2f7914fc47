"""Encoders on a GPU that is not there: only the pooled vectors come to the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_encoders import load

from mrs.engine.pooling import Pooling
from mrs.engine.sequence import SequenceRequest
from mrs.request import Sampling
from support.engines import make_engine
from support.fake_gpu import FakeGpu, Traffic
from support.sentence_models import write_model
from support.suites import first

GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))
_GEMMA: dict[str, Any] = {"use_bidirectional_attention": True, "head_dim": 16, "sliding_window": 8}
_DEBERTA = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 8}
CASES = (
    ("bert", "AutoModelForSequenceClassification", {}),
    ("nomic_bert", "AutoModel", {}),
    ("modernbert", "AutoModel", {"local_attention": 8}),
    ("gemma3_text", "AutoModel", _GEMMA),
    ("mpnet", "AutoModel", {}),
    ("deberta-v2", "AutoModel", _DEBERTA),
    ("eurobert", "AutoModel", {"mask_token_id": 2}),
)


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("devices", first(1, [GPUS, GPUS[:1]]), ids=["two", "one"])
@pytest.mark.parametrize(("family", "kind", "config"), CASES, ids=lambda value: str(value)[:12])
def test_only_vectors_come_to_the_host(
    family: str,
    kind: str,
    config: dict[str, Any],
    devices: tuple[torch.device, ...],
    tmp_path: Path,
) -> None:
    write_model(tmp_path, family, kind, **config)
    with FakeGpu() as gpu:
        *_, decoder = load(tmp_path, "bf16", devices=devices)
        traffic = traffic_of_a_step(gpu, decoder)
    pooled, classes = (64,), (2,)
    is_ranker = "Classification" in kind
    assert traffic.to_host == ([pooled, classes] if is_ranker else [pooled]) * 2


def traffic_of_a_step(gpu: FakeGpu, decoder: Any) -> Traffic:
    """What a step of two texts does."""
    engine = make_engine(decoder, planned_tokens=96, context_tokens=96, max_seqs=2)
    texts, types = (range(4, 34), range(4, 24)), [0] * 5 + [1] * 15
    sequences = [
        engine.add(SequenceRequest(ids, Sampling(), pooling=Pooling("cls"), token_types=kinds))
        for ids, kinds in zip(texts, ((), types), strict=True)
    ]
    traffic = gpu.record()
    engine.step()
    for each in sequences:
        assert each.is_finished
        if each.error is not None:
            raise each.error
    return traffic
