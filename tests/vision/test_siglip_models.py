"""Models that see with SigLIP's tower: published ones, spellings, prompts, and smaller pictures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from gemma3_cases import GEMMA3
from idefics3_cases import IDEFICS3
from published_siglip import PUBLISHED, Header, published
from safetensors.torch import load_file, save_file
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string
from vision_case import make_tokenizer
from vision_reference import picture
from vision_running import Conversation, difference, load_vision_model

from mrs.architecture.describe import describe
from mrs.architecture.vision.image_layouts import limit_edge
from mrs.architecture.vision_spec import ImageLayout
from mrs.errors import NotReadable, UsageError
from mrs.families.vision.idefics3 import SplitLayout
from mrs.media.media_loader import MediaLoader
from mrs.media.read_media import read_media
from mrs.model.vision.siglip import nearest_position_ids
from mrs.plan.memory.vision_sizes import planned_images
from mrs.request import VisionRequest


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    _, _, parameters, rows = PUBLISHED[name]
    description, numbers = published(name)
    assert sum(prod(p.shape) for p in description.parameters) == parameters == numbers
    vision = description.spec.vision
    assert vision is not None
    for (width, height), count in rows.items():
        shape = vision.layout.shape(height, width)
        assert (
            shape.rows
            == count
            == shape.text.count("<image>") + shape.text.count("<image_soft_token>")
        )


def test_as_transformers_4_spelled(vision_references, tmp_path: Path) -> None:
    """Gemma's tower lay a module deeper in published files."""
    truth = vision_references(GEMMA3[0])
    folder = tmp_path / "published"
    shutil.copytree(truth.folder, folder)
    tensors = {
        name.replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    for key in ("image_token_index", "tie_word_embeddings"):
        assert key in config
    del config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    model, prompt = load_vision_model(folder), truth.prompts[2]
    ids, images = model.shown(prompt.text, prompt.images)
    assert difference(Conversation(model).feed(ids, images), prompt.logits) < 1e-4


@pytest.mark.parametrize(
    ("rows", "columns", "side"),
    [(26, 26, 26), (27, 27, 27), (29, 29, 29), (32, 32, 32), (35, 9, 26), (1, 7, 32)],
)
def test_places_of_patches(rows: int, columns: int, side: int) -> None:
    """Published sizes, where float32 decides on which side of a boundary a patch lies; and odd."""
    config = Idefics3VisionConfig(
        hidden_size=1, num_attention_heads=1, image_size=side * 2, patch_size=2
    )
    theirs = Idefics3VisionEmbeddings(config)
    theirs.patch_embedding = torch.nn.Conv2d(3, 1, 2, 2)
    for parameter in theirs.patch_embedding.parameters():
        parameter.data.zero_()
    theirs.position_embedding.weight.data = torch.arange(side**2, dtype=torch.float32)[:, None]
    pixels = torch.zeros(1, 3, rows * 2, columns * 2)
    numbers = theirs(pixels, torch.ones(1, rows, columns, dtype=torch.bool)).flatten()
    assert torch.equal(nearest_position_ids(rows, columns, side), numbers.long())


SIZES = [(37, 53), (90, 41), (200, 7), (6, 201), (24, 24), (64, 64), (41, 90)]


@pytest.mark.parametrize("case", GEMMA3, ids=lambda case: case.id)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gemma_prompts(case, size, vision_references) -> None:
    """The text around and between images, to the letter."""
    layout = load_vision_model(vision_references(case).folder).vision.layout
    processor = case.processor(make_tokenizer(case.specials))
    inputs = processor.image_processor(images=[picture(*size)])
    assert layout.shape(size[1], size[0]).text == processor.replace_image_token(inputs, 0)


@pytest.mark.few(7)
@pytest.mark.parametrize("case", IDEFICS3, ids=lambda case: case.id)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_idefics_prompts(case, size, vision_references) -> None:
    layout = load_vision_model(vision_references(case).folder).vision.layout
    processor = case.processor(make_tokenizer(case.specials))
    inputs = processor.image_processor(images=[picture(*size)], return_row_col_info=True)
    text = layout.shape(size[1], size[0]).text
    assert text == processor.replace_image_token(inputs, 0)
    rows, columns = inputs["rows"][0][0], inputs["cols"][0][0]
    tokens = ("<fake_token_around_image>", "<image>", "<global-img>")
    assert text == get_image_prompt_string(rows, columns, processor.image_seq_len, *tokens)


def published_layout(name: str) -> ImageLayout:
    vision = published(name)[0].spec.vision
    assert vision is not None
    return vision.layout


def split_layout(longest_edge: int, tile: int, **changes: Any) -> SplitLayout:
    layout = published_layout("SmolVLM-256M-Instruct")
    assert isinstance(layout, SplitLayout)
    return replace(layout, longest_edge=longest_edge, tile=tile, **changes)


@pytest.mark.parametrize("longest_edge", [23, 24, 45, 47, 48, 49, 71, 97])
def test_no_picture_has_more_tiles_than_a_square(longest_edge: int) -> None:
    layout = split_layout(longest_edge, 24)
    most = layout.largest(10).rows
    for height in range(1, 120):
        for width in range(1, 120, 7):
            assert layout.shape(height, width).rows <= most


@pytest.mark.full
@pytest.mark.parametrize(
    ("edge", "tiles"),
    [(1100, 5), *(pytest.param(*each, marks=pytest.mark.full)
                                        for each in ((None, 13), (512, 1), (3000, 13), (100, 1)))],
)  # fmt: skip
def test_a_longest_edge_that_is_set_makes_fewer_tiles(
    edge: int | None, tiles: int, tmp_path: Path
) -> None:
    spec = published("SmolVLM-256M-Instruct", edge)[0].spec
    assert spec.vision is not None
    picture(900, 640).save(tmp_path / "large.png")
    messages: Any = [
        {"role": "user", "content": "?", "images": [read_media(str(tmp_path / "large.png"))]}
    ]
    ((shown,),) = (each.images for each in MediaLoader(spec.vision.layout, edge).load(messages))
    assert shown.shape.rows == tiles * 64
    planned = planned_images(spec, VisionRequest(edge))
    assert planned is not None
    assert planned.largest.rows >= shown.shape.rows
    assert (planned.largest.rows == 64) == (tiles == 1)


def test_a_longest_edge_means_nothing_to_others() -> None:
    square = published_layout("gemma-3-4b-it")
    for layout in (square, split_layout(72, 24, is_split=False), split_layout(24, 24)):
        with pytest.raises(UsageError, match="--max-edge has no effect"):
            limit_edge(layout, 500)
    with pytest.raises(UsageError, match="--max-edge has no effect"):
        published("gemma-3-4b-it", 500)


_TILES_OF_64 = {"max_image_size": {"longest_edge": 64}}


@pytest.mark.parametrize(
    ("name", "model", "images", "told"),
    [
        ("gemma-3-4b-it", {"mm_tokens_per_image": 250}, {}, "mm_tokens_per_image = 250"),
        (
            "gemma-3-4b-it",
            {"mm_tokens_per_image": 25},
            {},
            "cannot be pooled to mm_tokens_per_image = 25",
        ),
        ("gemma-3-4b-it", {}, {"size": {"height": 448, "width": 896}}, "448 x 896"),
        (
            "gemma-3-4b-it",
            {},
            {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 1},
            "crops of 1 pixels",
        ),
        ("SmolVLM-256M-Instruct", {"scale_factor": 5}, {}, "scale_factor = 5"),
        ("SmolVLM-256M-Instruct", {}, {"max_image_size": {"longest_edge": 9}}, "0 patches"),
        (
            "SmolVLM-256M-Instruct",
            {},
            {"size": {"longest_edge": 10**9}, **_TILES_OF_64},
            "out of range",
        ),
        ("SmolVLM-256M-Instruct", {}, {"do_resize": False}, "do_resize"),
        ("SmolVLM-256M-Instruct", {}, {"size": {"height": 5, "width": 5}}, "longest_edge"),
    ],
)
def test_broken_configs(name: str, model: Any, images: Any, told: str) -> None:
    values, settings, _, _ = PUBLISHED[name]
    header = Header(name, {**values, **model}, {**settings, **images}, {})
    with pytest.raises(Exception, match=told) as caught:
        describe(header, with_vision=True)
    assert type(caught.value).__module__ == NotReadable.__module__
