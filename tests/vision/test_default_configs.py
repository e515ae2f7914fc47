"""Configs with nothing but defaults are those of transformers' classes, to the parameter."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from paddleocr_cases import PADDLEOCR_VL

from mrs.architecture.config import Config
from mrs.architecture.describe import describe
from mrs.architecture.parameters import list_parameters
from mrs.architecture.readers.gguf_reader import config_from_gguf
from mrs.architecture.vision.describe_vision import (
    describe_vision,
    language_model_of,
    vision_family,
)
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint


def _text(*sections: int, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "mrope_section": [*sections]}, **fields}


#: Family -> what its config for text must say, if that has a default that does not fit others.
TEXTS: dict[str, dict[str, Any]] = {
    "idefics2": {"model_type": "mistral"},
    "paddleocr_vl": {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
    "minicpmv4_6": {"model_type": "qwen3_5_text"},
    "glm4v": _text(16, 24, 24),
    "glm46v": _text(16, 24, 24),
    "glm4v_moe": _text(8, 12, 12, head_dim=128),
    "glm_ocr": _text(16, 16, 16, hidden_size=1536),
}
#: What else a config must say.
MODELS: dict[str, dict[str, Any]] = {"minicpmv4_6": {"image_token_id": 7}}


@pytest.mark.parametrize("name", TEXTS)
def test_defaults(name: str) -> None:
    more = MODELS.get(name, {})
    config = transformers.AutoConfig.for_model(name, text_config=TEXTS[name], **more)
    with torch.device("meta"):
        theirs = transformers.AutoModelForMultimodalLM.from_config(config)
    given = {"model_type": name, "vision_config": {}, "text_config": TEXTS[name], **more}
    family = vision_family(name, name)
    model = Config({**family.defaults, **given}, name)
    tied = theirs.get_input_embeddings().weight is theirs.lm_head.weight
    tensors = () if tied else (f"{family.head}.weight",)
    text = language_model_of(family, model, tensors)
    spec = text.family.read(text.config)
    parameters = list_parameters(spec, text.names)
    spec, vision_parameters = describe_vision(family, model, {}, spec, tensors)
    ours = sum(prod(parameter.shape) for parameter in parameters + vision_parameters)
    stored = theirs.state_dict().items()  # with the buffers of routers
    assert ours == sum(t.numel() for key, t in stored if not (tied and key == "lm_head.weight"))
    assert spec.context_tokens == config.get_text_config().max_position_embeddings
    assert spec.vision is not None
    assert spec.vision.image_token_id == config.image_token_id


def test_a_config_with_that_of_the_text_at_the_top(vision_references: Any, tmp_path: Path) -> None:
    """As PaddleOCR-VL is published, with a tower that has the type of the whole."""
    folder = vision_references(PADDLEOCR_VL[0]).folder
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {"rope_scaling": {**rope, "type": "default"}, "rope_theta": rope.pop("rope_theta")}
    config["vision_config"]["model_type"] = "paddleocr_vl"
    (tmp_path / "config.json").write_text(json.dumps({**text, **config, **old}))
    for with_vision in (False, True):
        own, flat = (
            describe(
                open_checkpoint(ModelSource(str(each), "safetensors")), with_vision=with_vision
            )
            for each in (folder, tmp_path)
        )
        assert own.spec == flat.spec


def test_blocks_that_predict_further_tokens_are_no_layers() -> None:
    """GGUF files count them, as those of GLM 4.5 and GLM-OCR do."""
    metadata = {"general.architecture": "glm4", "glm4.block_count": 17}
    assert config_from_gguf(metadata, {}, {}, "a.gguf")["num_hidden_layers"] == 17
    metadata["glm4.nextn_predict_layers"] = 1
    assert config_from_gguf(metadata, {}, {}, "a.gguf")["num_hidden_layers"] == 16
