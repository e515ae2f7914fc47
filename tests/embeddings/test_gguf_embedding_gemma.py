"""EmbeddingGemma in the GGUF files of llama.cpp's converter."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gguf
import pytest
import torch
from encoder_cases import CASES, Encoded
from safetensors.torch import load_file
from test_encoders import difference, hidden_states
from transformers import AutoConfig

from mrs.architecture.describe import describe
from mrs.architecture.pooler import Dense, Pooler
from mrs.devices.probe import probe_devices
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import make_plan
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint
from support.gguf_writer import write_text_model
from support.planned_decoder import planned_decoder

GEMMAS = [
    case for case in CASES if case.family == "gemma3_text" and "attention_bias" not in case.changes
]


def write(encoded: Encoded, path: Path, dense: tuple[int, ...] = ()) -> None:
    """`dense` are the rows of the layers after the pooling. Files have the published window, and
    transformers' config about half of it.
    """
    config = AutoConfig.from_pretrained(encoded.folder).to_dict()
    config["sliding_window"] = encoded.case.config["sliding_window"]
    tensors = {
        f"model.{name.removeprefix('model.')}": tensor
        for name, tensor in load_file(encoded.folder / "model.safetensors").items()
    }
    sizes, numbers, names = (config["hidden_size"], *dense), {}, {}
    for index, (columns, rows) in enumerate(pairwise(sizes), 2):
        numbers |= {f"dense_{index}_feat_in": columns, f"dense_{index}_feat_out": rows}
        name = f"dense_{index}.weight"
        names[name] = name
        tensors[name] = torch.randn(rows, columns)
    write_text_model(
        path,
        "gemma-embedding",
        config,
        tensors,
        like="gemma3",
        names=names,
        numbers={"pooling_type": gguf.PoolingType.MEAN, **numbers},
    )


@pytest.mark.parametrize("dense", [(), (80,), (80, 32)], ids=str)
@pytest.mark.parametrize("encoded", GEMMAS, ids=lambda case: case.id, indirect=True)
def test_hidden_states_are_those_of_transformers(
    encoded: Encoded, dense: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(encoded, path, dense)
    source = ModelSource(str(path), "gguf")
    checkpoint = open_checkpoint(source)
    description = describe(checkpoint)
    assert description.warnings == ()
    hidden, layers = description.spec.hidden_size, []
    for columns, rows in zip((hidden, *dense), dense, strict=False):
        layers.append(Dense(rows, columns, bias=False))
    size = (hidden, *dense)[-1]
    assert description.spec.pooler == replace(Pooler("mean"), dense=tuple(layers), size=size)
    request = RunRequest(source, dtype="f32", cpu=True)
    host = probe_devices(what_if=(), cpu_only=True)
    plan = make_plan(request, ModelWeightsInfo(checkpoint, description), host, cpu_packs=False)
    _, decoder = planned_decoder(checkpoint, description, plan, (torch.device("cpu"),))
    assert difference(hidden_states(decoder, [encoded.ids])[0], encoded.hidden) < 1e-4
