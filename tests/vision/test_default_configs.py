"""Configs with nothing but defaults are those of transformers' classes, to the parameter."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from glm_cases import GLM_V
from paddleocr_cases import PADDLEOCR_VL
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
    PaddleOCRVLImageProcessorPil,
)
from vision_case import VisionCase
from vision_reference import picture

from mrs.architecture.describe import describe
from mrs.architecture.gguf_config import config_from_gguf
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.vision.describe_vision import (
    describe_vision,
    language_model_of,
    vision_family,
)
from mrs.config.config import Config
from mrs.errors import MrsError, NotReadable, Unsupported
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


#: Family -> transformers' image processor, with all of its defaults but the size of patches.
PROCESSORS: dict[str, Callable[..., Any]] = {
    "idefics2": lambda _: Idefics2ImageProcessorPil(),
    "paddleocr_vl": lambda patch: PaddleOCRVLImageProcessorPil(patch_size=patch),
    "minicpmv4_6": lambda patch: MiniCPMV4_6ImageProcessorPil(patch_size=patch),
    **dict.fromkeys(
        ("glm4v", "glm46v", "glm4v_moe", "glm_ocr"),
        lambda patch: Glm4vImageProcessorPil(patch_size=patch),
    ),
}


def described(
    config: dict[str, Any], images: dict[str, Any], *, tied: bool = False
) -> tuple[ModelSpec, int]:
    """The model of a config, and the number of its parameters."""
    name = config["model_type"]
    family = vision_family(name, name)
    model = Config({**family.defaults, **config}, name)
    tensors = () if tied else (f"{family.head}.weight",)
    text = language_model_of(family, model, tensors)
    spec = text.family.read(text.config)
    parameters = list_parameters(spec, text.names)
    spec, vision_parameters = describe_vision(family, model, images, spec, tensors)
    return spec, sum(prod(parameter.shape) for parameter in parameters + vision_parameters)


def config_of(name: str) -> dict[str, Any]:
    text, more = TEXTS[name], MODELS.get(name, {})
    return {"model_type": name, "vision_config": {}, "text_config": text, **more}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", TEXTS)
def test_defaults(name: str) -> None:
    config = transformers.AutoConfig.for_model(
        name, text_config=TEXTS[name], **MODELS.get(name, {})
    )
    with torch.device("meta"):
        theirs = transformers.AutoModelForMultimodalLM.from_config(config)
    tied = theirs.get_input_embeddings().weight is theirs.lm_head.weight
    spec, count = described(config_of(name), {}, tied=tied)
    stored = theirs.state_dict().items()  # with the buffers of routers
    assert count == sum(t.numel() for key, t in stored if not (tied and key == "lm_head.weight"))
    assert spec.context_tokens == config.get_text_config().max_position_embeddings
    assert spec.vision is not None
    assert spec.vision.image_token_id == config.image_token_id


@pytest.mark.few("idefics2-size0", "minicpmv4_6-size2", "glm_ocr-size0")
@pytest.mark.values
@pytest.mark.parametrize("size", [(640, 480), (1200, 2000), (20, 90)])
@pytest.mark.parametrize("name", TEXTS)
def test_default_sizes_of_images(name: str, size: tuple[int, int]) -> None:
    vision = described(config_of(name), {})[0].vision
    assert vision is not None
    patch = getattr(vision.layout, "patch_size")  # noqa: B009
    made = PROCESSORS[name](patch)(images=[picture(*size)], return_tensors="pt")
    if "image_grid_thw" in made:
        expected = int(made["image_grid_thw"].prod())
    elif "target_sizes" in made:
        expected = int(made["target_sizes"].prod(1).sum())
    else:
        height, width = made["pixel_values"].shape[-2:]
        expected = height // patch * (width // patch)
    assert vision.layout.shape(size[1], size[0]).patches == expected


@pytest.mark.parametrize(
    ("name", "changes", "images", "error", "message"),
    [
        ("glm4v", {"out_hidden_size": 96}, {}, NotReadable, "out_hidden_size is not 4096"),
        ("glm4v", {"image_size": [336, 300]}, {}, Unsupported, "not a square"),
        ("glm4v", {"num_heads": 256}, {}, NotReadable, "two-dimensional rope"),
        ("glm4v", {"rope_parameters": {"rope_type": "yarn"}}, {}, Unsupported, "rope_type"),
        ("glm4v", {"hidden_act": "tanh"}, {}, Unsupported, "activation 'tanh'"),
        ("glm4v", {}, {"temporal_patch_size": 3}, Unsupported, "temporal_patch_size"),
        ("glm_ocr", {}, {"merge_size": 3}, Unsupported, "merge_size"),
        ("paddleocr_vl", {"image_size": 8}, {}, NotReadable, "image_size is less than a patch"),
        ("paddleocr_vl", {"num_channels": 4}, {}, Unsupported, "num_channels"),
        ("paddleocr_vl", {}, {"temporal_patch_size": 2}, Unsupported, "temporal_patch_size"),
        ("idefics2", {"num_channels": 1}, {}, Unsupported, "num_channels"),
        ("idefics2", {}, {"do_resize": False}, Unsupported, "do_resize"),
        ("idefics2", {}, {"size": {"height": 9, "width": 9}}, NotReadable, "shortest_edge"),
        ("minicpmv4_6", {"window_kernel_size": [3, 3]}, {}, Unsupported, "window_kernel_size"),
        ("minicpmv4_6", {"num_hidden_layers": 6}, {}, NotReadable, "insert_layer_id = 6 is out"),
        ("minicpmv4_6", {}, {"downsample_mode": "4x"}, Unsupported, "downsample_mode"),
        ("minicpmv4_6", {}, {"max_slice_nums": 10**6}, NotReadable, "out of range"),
    ],
)
def test_refused(
    name: str, changes: dict[str, Any], images: dict[str, Any], error: type[MrsError], message: str
) -> None:
    with pytest.raises(error, match=message):
        described({**config_of(name), "vision_config": changes}, images)


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("glm4v", {"text_config": {}}, NotReadable, "lacks 'mrope_section'"),
        ("paddleocr_vl", {"text_config": {}}, NotReadable, "lacks 'mrope_section'"),
        ("minicpmv4_6", {"image_token_id": None}, NotReadable, "lacks 'image_token_id'"),
        ("minicpmv4_6", {"merger_times": 2}, Unsupported, "merger_times"),
        ("minicpmv4_6", {"merge_kernel_size": [1, 2]}, Unsupported, "merge_kernel_size"),
        ("minicpmv4_6", {"drop_vision_last_layer": True}, Unsupported, "drop_vision_last"),
        ("minicpmv4_6", {"downsample_mode": "8x"}, Unsupported, "downsample_mode"),
        (
            "idefics2",
            {"perceiver_config": {"resampler_depth": 99}},
            NotReadable,
            "64 rows, 99 layers",
        ),
    ],
)
def test_refused_models(
    name: str, changes: dict[str, Any], error: type[MrsError], message: str
) -> None:
    with pytest.raises(error, match=message):
        described({**config_of(name), **changes}, {})


@pytest.mark.few("paddleocr_vl-default", "glm_ocr-odd")
@pytest.mark.parametrize(
    "case", [PADDLEOCR_VL[0], *(case for case in GLM_V if case.name == "odd")], ids=lambda c: c.id
)
def test_a_config_with_that_of_the_text_at_the_top(
    vision_references: Any, tmp_path: Path, case: VisionCase
) -> None:
    """As PaddleOCR-VL and GLM-4.1V are published, with a tower that has the type of the whole."""
    folder = vision_references(case).folder
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {"rope_scaling": {**rope, "type": "default"}, "rope_theta": rope.pop("rope_theta")}
    config["vision_config"]["model_type"] = case.family
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
