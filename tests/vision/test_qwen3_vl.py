"""Qwen3-VL: what no other family has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from qwen3_cases import QWEN3_VL
from safetensors.torch import load_file, save_file
from vision_reference import VisionReference
from vision_running import Conversation, difference, load_vision_model

from mrs.architecture.describe import describe
from mrs.distributed.shard import require_splittable
from mrs.errors import NotReadable, Unsupported
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint


@pytest.fixture(scope="module")
def folder(vision_references: Any) -> Path:
    reference: VisionReference = vision_references(QWEN3_VL[0])
    return reference.folder


def changed(folder: Path, target: Path, part: str, **values: Any) -> Path:
    shutil.copytree(folder, target)
    path = target / "config.json"
    config = json.loads(path.read_text())
    config[part] |= values
    path.write_text(json.dumps(config))
    return target


def read(folder: Path) -> Any:
    return describe(open_checkpoint(ModelSource(str(folder), "safetensors")), with_vision=True)


def test_layers_that_get_features_are_in_one_process(folder: Path) -> None:
    with pytest.raises(Unsupported, match="features of images cannot be in several processes"):
        require_splittable(read(folder).spec)


@pytest.mark.parametrize("indices", [[2, 0], [0, 0], [3]])
def test_wrong_layers(folder: Path, tmp_path: Path, indices: list[int]) -> None:
    with pytest.raises(NotReadable, match="must be ascending indices of 3 layers"):
        read(changed(folder, tmp_path / "m", "vision_config", deepstack_visual_indexes=indices))


def test_published_files_have_transposed_experts(vision_references: Any, tmp_path: Path) -> None:
    case = next(case for case in QWEN3_VL if case.id == "qwen3_vl_moe-default")
    reference: VisionReference = vision_references(case)
    folder = tmp_path / "published"
    shutil.copytree(reference.folder, folder)
    path = folder / "model.safetensors"
    tensors = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    model, prompt = load_vision_model(folder), reference.prompts[1]
    ids, images = model.shown(prompt.text, prompt.images)
    assert difference(Conversation(model).feed(ids, images), prompt.logits) < 1e-4


def test_sections_are_interleaved(folder: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [4, 5, 3]}
    with pytest.raises(Unsupported, match="mrope_interleaved = false"):
        read(changed(folder, tmp_path / "m", "text_config", rope_parameters=rope))
