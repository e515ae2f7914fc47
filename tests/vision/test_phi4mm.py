"""Phi-4-multimodal's first files, which have adapters in them, give what transformers' give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from phi4_cases import PHI4_MULTIMODAL
from safetensors.torch import load_file, save_file
from vision_case import VisionCase
from vision_reference import VisionReference
from vision_running import Conversation, difference, load_vision_model

from mrs.architecture.describe import describe
from mrs.request import AdapterRequest, ModelSource
from mrs.source.find import open_checkpoint
from support.lora_files import Adapter

#: Names of transformers -> those of the first files.
_FIRST = {
    "sub_img_feature_extensor": "sub_GN",
    "global_img_feature_extensor": "glb_GN",
    "img_projection_up": "img_projection.0",
    "img_projection_down": "img_projection.2",
}
_MATRIX = re.compile(r"(model\.layers\..*_proj)\.weight")


def write_first_form(truth: VisionReference, folder: Path) -> Path:
    """The same model with the names of the first files, and with adapters beside each matrix."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(truth.folder / "model.safetensors").items():
        for new, first in _FIRST.items():
            name = name.replace(new, first)
        if (matrix := _MATRIX.fullmatch(name)) is None:
            found[name] = tensor
            continue
        found[f"{matrix[1]}.base_layer.weight"] = tensor
        for kind in ("vision", "speech"):
            found[f"{matrix[1]}.lora_A.{kind}.weight"] = torch.randn(2, tensor.shape[1])
            found[f"{matrix[1]}.lora_B.{kind}.weight"] = torch.randn(tensor.shape[0], 2)
    folder.mkdir()
    save_file(found, folder / "model.safetensors")
    config = json.loads((truth.folder / "config.json").read_text())
    tower = config.pop("vision_config")
    del config["audio_config"]
    images = {"embedding_cls": "tune_image", "crop_size": tower["crop_size"]}
    # The published config has no sizes of the tower.
    config |= {"model_type": "phi4mm", "embd_layer": {**tower, "image_embd_layer": images}}
    config["architectures"] = ["Phi4MMForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        text = (truth.folder / name).read_text()
        (folder / name).write_text(text.replace("<|image|>", "<|endoftext10|>"))
    return folder


@pytest.fixture(scope="module", params=PHI4_MULTIMODAL, ids=lambda case: case.id)
def truth(
    request: pytest.FixtureRequest, vision_references: Callable[[VisionCase], VisionReference]
) -> VisionReference:
    return vision_references(request.param)


@pytest.fixture(scope="module")
def folder(truth: VisionReference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_first_form(truth, tmp_path_factory.mktemp("phi4mm") / "first")


@pytest.mark.few(2)
@pytest.mark.table("0, 1, 2 images")
@pytest.mark.parametrize("images", [0, 1, 2])
def test_logits(truth: VisionReference, folder: Path, images: int) -> None:
    prompt = truth.prompts[images]
    model = load_vision_model(folder)
    ids, shown = model.shown(prompt.text, prompt.images)
    assert ids == prompt.ids
    assert difference(Conversation(model).feed(ids, shown), prompt.logits) < 1e-4


def test_the_adapter_for_images_fits_both_forms(
    truth: VisionReference, folder: Path, tmp_path: Path
) -> None:
    weights = load_file(truth.folder / "model.safetensors")
    layers = {name: each for name, each in weights.items() if name.startswith("model.layers.")}
    adapter = Adapter(layers, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    request = AdapterRequest(str(adapter.write(tmp_path / "vision-lora")), "vision", is_merged=True)
    prompt = truth.prompts[1]
    found = []
    for each in (truth.folder, folder):
        model = load_vision_model(each, adapters=(request,))
        found.append(Conversation(model).feed(*model.shown(prompt.text, prompt.images)))
    assert difference(*found) < 1e-6
    assert difference(found[1], prompt.logits) > 1e-2


def test_without_images_it_is_a_text_model(folder: Path) -> None:
    checkpoint = open_checkpoint(ModelSource(str(folder), "safetensors"))
    assert describe(checkpoint, with_vision=False).spec.vision is None
