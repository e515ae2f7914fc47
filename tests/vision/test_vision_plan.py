"""The planned memory of the vision part is the memory that a run needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from llava_cases import LLAVA, LLAVA_NEXT
from vision_case import VisionCase
from vision_reference import VisionReference
from vision_running import LoadedVisionModel, load_vision_model

from mrs.architecture.describe import describe
from mrs.devices.probe import probe_devices
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.errors import NotReadable
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import make_plan
from mrs.plan.report.document import to_document
from mrs.request import ModelSource, RunRequest, VisionRequest
from mrs.source.find import open_checkpoint


@pytest.mark.table("planned bytes")
def test_weights_and_features_are_exact(model: LoadedVisionModel) -> None:
    planned = model.plan.vision
    assert planned is not None
    held = 0
    for parameter in model.description.parameters:
        if parameter.name.startswith("vision."):
            if parameter.role in ("vector", "dense"):
                held += model.weights.vector(parameter.name).nbytes
            else:
                held += model.weights.matrix(parameter.name.removesuffix(".weight")).nbytes
    assert planned.weight_bytes == held
    shape = model.vision.layout.largest(planned.image_edge)
    assert planned.image_rows == shape.rows
    assert model.decoder.vision is not None
    with torch.inference_mode():
        features = model.decoder.vision(torch.zeros(shape.pixels), shape)
    assert planned.feature_bytes == planned.images * features.nbytes


@pytest.mark.few(
    "gemma3-default-f32",
    "gemma4-small-f32",
    "idefics2-split-f32",
    "lfm2_vl-default-f32",
    "llama4-default-f32",
    "llava-default-f32",
    "mllama-default-f32",
    "minicpmv4_6-default-f32",
    "phi3_v-published-f32",
    "qwen2_5_vl-default-f32",
    "qwen3_5-default-f32",
    "muse_glimmer-default-f32",
)
@pytest.mark.each_family
@pytest.mark.values
@pytest.mark.table("planned bytes")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_looking_takes_no_more_than_planned(truth: VisionReference, dtype: str) -> None:
    model = load_vision_model(truth.folder, dtype=dtype)
    planned, see = model.plan.vision, model.decoder.vision
    assert planned is not None
    assert see is not None
    shape = model.vision.layout.largest(planned.image_edge)
    with torch.inference_mode():
        see(torch.zeros(shape.pixels), shape)
        measured = peak_bytes(lambda: see(torch.zeros(shape.pixels), shape), torch.device("cpu"))
    assert measured <= planned.activation_bytes
    assert planned.activation_bytes <= 3 * measured + 2**20


@pytest.mark.few(3)
@pytest.mark.table("ISQ")
def test_isq_leaves_the_tower(truth: VisionReference) -> None:
    plain, small = load_vision_model(truth.folder), load_vision_model(truth.folder, isq="q8_0")
    assert plain.plan.vision == small.plan.vision
    formats = {
        name: kept.format.name
        for name, kept in small.plan.storage.items()
        if name.endswith("mixer.q.weight")
    }
    for name, format in formats.items():
        assert (format == "F32") == name.startswith("vision."), name


@pytest.mark.few(4)
def test_more_images_take_more(truth: VisionReference) -> None:
    checkpoint = open_checkpoint(ModelSource(str(truth.folder), "safetensors"))
    description = describe(checkpoint, with_vision=True)
    devices = probe_devices(what_if=("cuda:0=8GiB", "cpu=8GiB"), cpu_only=False)
    request = RunRequest(checkpoint.source, max_seq_len=1000)
    plans = [
        make_plan(
            replace(request, vision=VisionRequest(None, count, 64)),
            ModelWeightsInfo(checkpoint, description),
            devices,
        )
        for count in (1, 4)
    ]
    held = [plan.breakdowns[plan.primary_device] for plan in plans]
    assert held[0].weight_bytes == held[1].weight_bytes
    assert held[0].activations.expected < held[1].activations.expected
    document = to_document(plans[1])
    assert document["vision"]["images"] == 4
    text = ModelWeightsInfo(checkpoint, describe(checkpoint))
    assert make_plan(RunRequest(checkpoint.source), text, devices).vision is None


@pytest.mark.parametrize("case", [LLAVA[0], LLAVA_NEXT[0]], ids=lambda case: case.family)
def test_crops_of_another_size_than_the_towers(
    vision_references, tmp_path: Path, case: VisionCase
) -> None:
    for path in vision_references(case).folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = tmp_path / "preprocessor_config.json"
    images = json.loads(settings.read_text())
    settings.write_text(json.dumps({**images, "crop_size": {"height": 12, "width": 12}}))
    with pytest.raises(NotReadable, match="crop_size is 12, but the tower encodes 24"):
        describe(open_checkpoint(ModelSource(str(tmp_path), "safetensors")), with_vision=True)
