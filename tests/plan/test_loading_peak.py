"""What is held at the worst moment of loading, quantizing included, is what the plan allows for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from support.model_files import write_model
from support.suites import first

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


#: Loads in a process of its own, and prints how much its resident memory grew at most.
PROGRAM = """
import json, sys
import torch
from mrs.run.model_loader import ModelLoader
from mrs.load.load import load_weights
from mrs.devices.host_memory import forget_peak, peak_resident_bytes, resident_bytes
from mrs.request import ModelSource, RunRequest

request = RunRequest(ModelSource(sys.argv[1], "safetensors"), cpu=True, **json.loads(sys.argv[2]))
loader = ModelLoader(request)
planner, plan = loader.planner, loader.plan
parameters = planner.description.parameters
devices = {parameter.name: torch.device("cpu") for parameter in parameters}
before = resident_bytes()
forget_peak()
weights = load_weights(planner.checkpoint, parameters, plan.storage, devices, lambda *_: None)
print(peak_resident_bytes() - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", MODEL, "BF16")


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the peak")
@pytest.mark.parametrize(
    "wishes", first(2, [{}, {"isq": "q4k"}, {"isq": "q8_0"}, {"dtype": "f32"}])
)
def test_loading_takes_no_more_than_is_planned(folder: Path, wishes: dict[str, Any]) -> None:
    request = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True, **wishes)
    terms = ModelLoader(request).plan.breakdowns[-1]
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(wishes)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # What it does besides, thread pools and the allocator's first pages, are a few MiB.
    most = terms.loading_bytes - terms.runtime.high + (8 << 20)
    assert 0.95 * terms.weight_bytes <= grown <= most
