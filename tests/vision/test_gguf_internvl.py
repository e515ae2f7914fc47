"""InternVL as llama.cpp's converter writes it gives what the safetensors files give."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_tensors import (
    MMPROJ,
    MODEL,
    Tensors,
    check_prompt,
    new_projector,
    renamed,
    under,
    write,
    write_text,
)
from internvl_cases import INTERNVL
from safetensors.torch import load_file
from vision_reference import VisionReference, make_vision_reference

from support.suites import first

#: Whose row of the table these tests fill.
FAMILY = "internvl"
#: The names of transformers -> those of the published files that the converter reads.
_LAYER = "vision_tower.encoder.layer."
_PUBLISHED = {
    _LAYER: "vision_tower.vision_model.encoder.layers.",
    ".layernorm_before.": ".norm1.",
    ".layernorm_after.": ".norm2.",
    ".attention.projection_layer.": ".attn.proj.",
    ".attention.q_norm.": ".attn.q_norm.",
    ".attention.k_norm.": ".attn.k_norm.",
    ".attention.": ".self_attn.",
    ".lambda_1": ".ls1.weight",
    ".lambda_2": ".ls2.weight",
    "vision_tower.embeddings.": "vision_tower.vision_model.embeddings.",
    "patch_embeddings.projection.": "patch_embedding.",
    "cls_token": "class_embedding",
    "position_embeddings": "position_embedding.weight",
    "vision_tower.layernorm.": "vision_tower.vision_model.post_layernorm.",
    "multi_modal_projector.layer_norm.": "mlp1.0.",
    "multi_modal_projector.linear_1.": "mlp1.1.",
    "multi_modal_projector.linear_2.": "mlp1.3.",
}


def write_projector(path: Path, config: dict[str, Any], tensors: Tensors, most: int) -> None:
    vision = config["vision_config"]
    edges = {key: vision[key][0] for key in ("image_size", "patch_size")}
    writer = new_projector(path, gguf.VisionProjectorType.INTERNVL, {**vision, **edges})
    writer.add_vision_projector_scale_factor(int(1 / config["downsample_ratio"]))
    writer.add_vision_preproc_min_tiles(1)
    writer.add_vision_preproc_max_tiles(most)
    published = {}
    for name, tensor in tensors.items():
        if not name.startswith("language_model.") and "mask_token" not in name:
            respelled = reduce(lambda old, pair: old.replace(*pair), _PUBLISHED.items(), name)
            published[respelled] = tensor
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)
    write(writer, renamed(published, "", "", names))


@pytest.fixture(scope="module", params=first(1, [0, 1]), ids=["default", "switched"])
def truth(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> VisionReference:
    case = INTERNVL[request.param]
    if request.param:  # files do not name the projector's activation
        case = replace(case, config={**case.config, "projector_hidden_act": "gelu"})
    reference = make_vision_reference(case, tmp_path_factory.mktemp("internvl-gguf"))
    folder = reference.folder
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    text = config["text_config"]
    writer = gguf.GGUFWriter(folder / MODEL, text["model_type"])
    write_text(writer, text, under(tensors, "language_model."), permutes=False)
    write_projector(folder / MMPROJ, config, tensors, 4 if request.param else 6)
    return reference


@pytest.mark.table("GGUF")
@pytest.mark.parametrize("images", [0, 1, 2])
def test_prompts(truth: VisionReference, images: int) -> None:
    check_prompt(truth, images)
