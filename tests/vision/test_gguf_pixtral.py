"""Mistral 3 as llama.cpp's converter writes it gives what the safetensors files give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_pixtral import write_pixtral
from gguf_tensors import MMPROJ, MODEL, Tensors, check_prompt, under, write_text
from mistral3_cases import MISTRAL3
from safetensors.torch import load_file
from vision_reference import VisionReference, make_vision_reference

from support.suites import first

#: Whose row of the table these tests fill.
FAMILY = "mistral3"


def write_mistral(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    kind, rope = config["model_type"], config["rope_parameters"]
    writer = gguf.GGUFWriter(path, {"mistral": "llama", "ministral3": "mistral3"}[kind])
    if kind == "ministral3":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    write_text(writer, config, under(tensors, "language_model."), permutes=True)


_SILU = {**MISTRAL3[0].config["vision_config"], "hidden_act": "silu"}
CASES = (MISTRAL3[0], replace(MISTRAL3[2], config={**MISTRAL3[2].config, "vision_config": _SILU}))


@pytest.fixture(scope="module", params=first(1, CASES), ids=lambda case: case.name)
def truth(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> VisionReference:
    reference = make_vision_reference(request.param, tmp_path_factory.mktemp("pixtral-gguf"))
    folder = reference.folder
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    write_mistral(folder / MODEL, config["text_config"], tensors)
    merged = config["spatial_merge_size"]
    write_pixtral(folder / MMPROJ, config["vision_config"], tensors, merged)
    return reference


@pytest.mark.table("GGUF")
@pytest.mark.parametrize("images", [0, 1, 2])
def test_prompts(truth: VisionReference, images: int) -> None:
    check_prompt(truth, images)
