"""Qwen2-VL and Qwen2.5-VL: published configurations, and those that are refused."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.vision.describe_vision import (
    describe_vision,
    language_model_of,
    vision_family,
)
from mrs.config.config import Config
from mrs.errors import MrsError, NotReadable, Unsupported
from mrs.families.vision.qwen2_5_vl import GGUF

_TEXT_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "sliding_window": 32_768,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "tie_word_embeddings": False,
}
_TEXT_2B = {
    **_TEXT_7B,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
_TOWER_2 = {
    "depth": 32,
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_chans": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
}
_TOWER_25 = {
    "depth": 32,
    "hidden_act": "silu",
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_chans": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 2,
    "temporal_patch_size": 2,
}
_IMAGES = {
    "min_pixels": 3136,
    "max_pixels": 12_845_056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
#: Name: number of parameters (from model cards and weight indexes), family, text, tower.
PUBLISHED: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "Qwen2-VL 2B": (2_208_985_600, "qwen2_vl", _TEXT_2B, {**_TOWER_2, "hidden_size": 1536}),
    "Qwen2-VL 7B": (8_291_375_616, "qwen2_vl", _TEXT_7B, {**_TOWER_2, "hidden_size": 3584}),
    "Qwen2.5-VL 3B": (
        3_754_622_976,
        "qwen2_5_vl",
        {
            **_TEXT_2B,
            "hidden_size": 2048,
            "intermediate_size": 11_008,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "max_position_embeddings": 128_000,
        },
        {**_TOWER_25, "out_hidden_size": 2048},
    ),
    "Qwen2.5-VL 7B": (
        8_292_166_656,
        "qwen2_5_vl",
        {**_TEXT_7B, "max_position_embeddings": 128_000},
        {**_TOWER_25, "out_hidden_size": 3584},
    ),
}


def described(
    name: str, config: dict[str, Any], images: dict[str, Any] = _IMAGES
) -> tuple[ModelSpec, int]:
    """The model of a published config, and the number of its parameters."""
    family = vision_family(config["model_type"], name)
    model = Config({**family.defaults, **config}, name)
    tensors = () if config.get("tie_word_embeddings") else ("lm_head.weight",)
    text = language_model_of(family, model, tensors)
    spec = text.family.read(text.config)
    parameters = list_parameters(spec, text.names)
    spec, vision_parameters = describe_vision(family, model, images, spec, tensors)
    return spec, sum(prod(parameter.shape) for parameter in parameters + vision_parameters)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    count, kind, text, tower = PUBLISHED[name]
    spec, counted = described(name, {**text, "model_type": kind, "vision_config": tower})
    assert counted == count
    assert spec.vision is not None
    assert spec.context_tokens == text["max_position_embeddings"]
    assert {layer.mixer.rope.sections for layer in spec.layers if layer.mixer.rope} == {
        (16, 24, 24)
    }
    shape = spec.vision.layout.shape
    assert (spec.vision.image_token_id, spec.vision.placeholder) == (151_655, "<|image_pad|>")
    # A token stands for 28 x 28 pixels, and there are 4 to 16384 of them.
    assert shape(1024, 1024).rows == 37 * 37
    assert shape(720, 1280).rows == 26 * 46
    assert shape(10, 10).rows == 4
    assert shape(7168, 7168).rows == 128 * 128
    assert shape(720, 1280).text == "<|image_pad|>" * 1196
    assert spec.vision.layout.is_resizable


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rope_scaling": {"mrope_section": [16, 24, 25]}}, NotReadable, "with the sum 64"),
        ({"rope_scaling": {"mrope_section": [32, 32]}}, NotReadable, "with the sum 64"),
        ({"rope_scaling": {"mrope_section": 64}}, NotReadable, "not a list"),
        ({"rope_scaling": {"mrope_section": [64, 0, 0]}}, NotReadable, "at least 1"),
        ({"rope_scaling": {"type": "mrope"}}, NotReadable, "lacks 'mrope_section'"),
        (
            {"rope_scaling": {"mrope_section": [16, 24, 24], "type": "dynamic", "factor": 2.0}},
            Unsupported,
            "rope scaling 'dynamic'",
        ),
        ({"vision_config": {**_TOWER_25, "num_heads": 640}}, NotReadable, "two-dimensional rope"),
        ({"vision_config": {**_TOWER_25, "window_size": 27}}, NotReadable, "window_size"),
        ({"vision_config": {**_TOWER_25, "fullatt_block_indexes": 7}}, NotReadable, "not a list"),
        (
            {"vision_config": {**_TOWER_25, "fullatt_block_indexes": ["7"]}},
            NotReadable,
            "fullatt_block_indexes",
        ),
        ({"vision_config": {**_TOWER_25, "in_channels": 4}}, Unsupported, "in_channels"),
    ],
)
def test_refused_configurations(
    changes: dict[str, Any], error: type[MrsError], message: str
) -> None:
    config = {**_TEXT_7B, "model_type": "qwen2_5_vl", "vision_config": _TOWER_25}
    described("as it is", config)
    with pytest.raises(error, match=message):
        described("bad", {**config, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"min_pixels": 10**12}, NotReadable, "min_pixels"),
        ({"max_pixels": 0}, NotReadable, "max_pixels"),
        ({"max_pixels": None, "size": {"longest_edge": "big"}}, NotReadable, "max_pixels"),
        ({"merge_size": 4}, Unsupported, "merge_size"),
        ({"patch_size": 16}, Unsupported, "patch_size"),
        ({"do_resize": False}, Unsupported, "do_resize"),
    ],
)
def test_refused_image_settings(
    changes: dict[str, Any], error: type[MrsError], message: str
) -> None:
    config = {**_TEXT_7B, "model_type": "qwen2_5_vl", "vision_config": _TOWER_25}
    with pytest.raises(error, match=message):
        described("bad", config, {**_IMAGES, **changes})


def test_an_mmproj_file_with_too_many_layers_is_refused() -> None:
    """Before any of them is listed."""
    metadata = {"block_count": 2**31, "n_wa_pattern": 2**20, "attention.head_count": 16}
    with pytest.raises(NotReadable, match="block_count = 2147483648 is out of range"):
        GGUF.tower(Config(metadata, "mmproj.gguf"))
