"""What is held at the worst moment of loading, quantizing included, is what the plan allows for."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from made_models import write_model

from mrs import runner
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.load.load import load_weights
from mrs.request import ModelSource, RunRequest

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", MODEL, "BF16")


@pytest.mark.parametrize(
    "wishes", [{}, {"isq": "q4k"}, {"isq": "q8_0"}, {"dtype": "f32"}, {"dtype": "f16"}]
)
def test_loading_takes_no_more_than_is_planned(
    folder: Path, wishes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)  # torch allocates, and counts, all
    request = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True, **wishes)
    planner = runner.open_planner(request)
    plan = runner.plan(request, planner)
    parameters = planner.description.parameters
    devices = {parameter.name: torch.device("cpu") for parameter in parameters}
    loaded: list[object] = []

    def load() -> None:
        weights = load_weights(
            planner.checkpoint, parameters, plan.storage, devices, lambda name, size_bytes: None
        )
        loaded.append(weights)

    terms = plan.terms[-1]
    assert terms.weight_bytes <= peak_bytes(load, torch.device("cpu")) <= terms.loading_bytes
