"""LightOn OCR as llama.cpp's converter writes it gives what the safetensors files give."""

from __future__ import annotations

import json

import gguf
import pytest
from gguf_pixtral import write_pixtral
from gguf_tensors import MMPROJ, MODEL, check_prompt, write_text
from lighton_cases import LIGHTON
from safetensors.torch import load_file
from vision_reference import VisionReference, make_vision_reference

#: Whose row of the table these tests fill.
FAMILY = "lighton_ocr"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> VisionReference:
    reference = make_vision_reference(LIGHTON[0], tmp_path_factory.mktemp("lighton-gguf"))
    folder = reference.folder
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    text = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in tensors.items()
        if not name.startswith("model.vision_")
    }
    write_text(
        gguf.GGUFWriter(folder / MODEL, "qwen3"), config["text_config"], text, permutes=False
    )
    named = {
        name.replace("model.vision_encoder.", "vision_tower.").replace(
            "model.vision_projection.", "multi_modal_projector."
        ): tensor
        for name, tensor in tensors.items()
    }
    kind = gguf.VisionProjectorType.LIGHTONOCR
    write_pixtral(
        folder / MMPROJ, config["vision_config"], named, config["spatial_merge_size"], kind
    )
    return reference


@pytest.mark.table("GGUF")
@pytest.mark.parametrize("images", [0, 1, 2])
def test_prompts(truth: VisionReference, images: int) -> None:
    check_prompt(truth, images)
