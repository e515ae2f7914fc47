"""Llama 3.2 Vision: the sizes that published and wrong configurations give."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from mllama_cases import MLLAMA

from mrs.architecture.describe import describe
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.architecture.vision.describe_vision import describe_vision
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.config.config import Config
from mrs.errors import MrsError
from mrs.families.mllama_text import FAMILY as TEXT_FAMILY
from mrs.families.vision.mllama import FAMILY
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

WRONG = {
    "does not match the tower, which has 4 tiles of 24": (
        "preprocessor_config.json",
        {"max_image_tiles": 5},
    ),
    "does not match the tower, which has 4 tiles of 24 pixels": (
        "preprocessor_config.json",
        {"size": {"height": 20, "width": 20}},
    ),
    "supported_aspect_ratios": ("config.json", {"supported_aspect_ratios": [[1, 1], [2, 2]]}),
    "intermediate_layers_indices": ("config.json", {"intermediate_layers_indices": [3]}),
}


@pytest.mark.parametrize("message", WRONG)
def test_bad_configurations_are_refused(vision_references, tmp_path: Path, message: str) -> None:
    folder = vision_references(MLLAMA[0]).folder
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    name, changes = WRONG[message]
    config = json.loads((tmp_path / name).read_text())
    inner = config["vision_config"] if name == "config.json" else config
    inner.update(changes)
    (tmp_path / name).write_text(json.dumps(config))
    with pytest.raises(MrsError, match=message):
        describe(open_checkpoint(ModelSource(str(tmp_path), "safetensors")), with_vision=True)


#: Of the model cards' files: parameters, and what differs from transformers' defaults.
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "Llama 3.2 11B Vision": (10_670_220_835, {}),
    "Llama 3.2 90B Vision": (
        88_593_355_323,
        {
            "hidden_size": 8192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 100,
            "num_attention_heads": 64,
            "cross_attention_layers": list(range(3, 100, 5)),
        },
    ),
}
_IMAGES = {"size": {"height": 560, "width": 560}, "max_image_tiles": 4}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_models(name: str) -> None:
    count, changes = PUBLISHED[name]
    text = TEXT_FAMILY.read(Config({**TEXT_FAMILY.defaults, **changes}, name))
    model = Config({"vision_config": {"image_size": 560}}, name)
    spec, vision_parameters = describe_vision(FAMILY, model, _IMAGES, text, ())
    parameters = list_parameters(text, {**SAFETENSORS, **TEXT_FAMILY.safetensors})
    parameters += vision_parameters
    assert sum(prod(p.shape) for p in parameters) == count
    assert spec.vision is not None
    layout = spec.vision.layout
    for (height, width), grid in (
        ((560, 560), (1, 1)),
        ((1, 1), (1, 1)),
        ((480, 640), (1, 2)),
        ((1080, 1920), (2, 2)),
        ((2000, 300), (4, 1)),
    ):
        shape = layout.shape(height, width)
        assert shape.grid == grid
        assert (shape.rows, shape.keys) == (1, prod(grid) * 1601)
        assert shape.patches == 4 * 1608
    assert layout.largest(1024).keys == 4 * 1601
    assert layout.largest(560).keys == 1601


def test_largest_is_exact() -> None:
    """Compared with all images of up to a few tiles, for tiles of a few pixels."""
    images = {**FAMILY.image_defaults, "size": {"height": 4, "width": 4}}
    tower = {**FAMILY.tower_defaults, "image_size": 4, "patch_size": 2}
    for tiles in (1, 2, 3, 4, 6):
        configs = VisionConfigs(
            Config({}, "a test"),
            Config({**tower, "max_num_tiles": tiles}, "a test"),
            Config({**images, "max_image_tiles": tiles}, "a test"),
        )
        layout = FAMILY.read(configs, TEXT_FAMILY.read(Config(TEXT_FAMILY.defaults, ""))).layout
        for edge in range(1, 30):
            sides = range(1, edge + 1)
            most = max(layout.shape(height, edge).keys for height in sides)
            most = max(most, *(layout.shape(edge, width).keys for width in sides))
            earlier = layout.largest(edge - 1).keys if edge > 1 else 0
            assert layout.largest(edge).keys == max(most, earlier)
