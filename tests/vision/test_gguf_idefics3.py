"""Idefics 3 as llama.cpp's converter writes it gives what the safetensors files give."""

from __future__ import annotations

import json
from dataclasses import replace

import gguf
import pytest
from gguf_tensors import (
    MMPROJ,
    MODEL,
    check_prompt,
    new_projector,
    renamed,
    under,
    write,
    write_text,
)
from idefics3_cases import IDEFICS3
from safetensors.torch import load_file
from vision_reference import VisionReference, make_vision_reference

from support.suites import first

#: Tiles have the size that the tower is for: files have that alone.
_TOWER = {**IDEFICS3[2].config["vision_config"], "image_size": 33}
#: One of each family.
CASES = (
    IDEFICS3[0],
    replace(IDEFICS3[2], config={**IDEFICS3[2].config, "vision_config": _TOWER}),
)


@pytest.fixture(scope="module", params=first(1, CASES), ids=lambda case: case.id)
def truth(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> VisionReference:
    reference = make_vision_reference(request.param, tmp_path_factory.mktemp("idefics3-gguf"))
    folder = reference.folder
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    text = {f"model.{name}": t for name, t in under(tensors, "model.text_model.").items()}
    text["lm_head.weight"] = tensors["lm_head.weight"]
    write_text(gguf.GGUFWriter(folder / MODEL, "llama"), config["text_config"], text, permutes=True)
    vision = {**config["vision_config"], "mean": [0.5] * 3, "std": [0.5] * 3}
    writer = new_projector(folder / MMPROJ, gguf.VisionProjectorType.IDEFICS3, vision)
    writer.add_vision_projector_scale_factor(config["scale_factor"])
    images = json.loads((folder / "preprocessor_config.json").read_text())
    writer.add_vision_preproc_image_size(images["size"]["longest_edge"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    tower = renamed(tensors, "model.vision_model.", "vision_tower.vision_model.", names)
    write(writer, tower | renamed(tensors, "model.connector.", "model.connector.", names))
    return reference


@pytest.mark.table("GGUF")
@pytest.mark.parametrize("images", [0, 1, 2])
def test_prompts(truth: VisionReference, images: int) -> None:
    check_prompt(truth, images)
