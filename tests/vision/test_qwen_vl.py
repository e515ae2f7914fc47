"""Qwen2-VL and Qwen2.5-VL: how published files spell them, and what no other family has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from qwen_cases import QWEN_VL
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.vision_utils import get_vision_window_index
from vision_reference import REPLY_TOKENS, VisionReference
from vision_running import Conversation, LoadedVisionModel, difference, load_vision_model

from mrs.architecture.config import Config
from mrs.architecture.describe import describe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.vision.describe_vision import (
    describe_vision,
    language_model_of,
    vision_family,
)
from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision_spec import PixelScale
from mrs.engine.multimodal import sequence_input
from mrs.errors import MrsError, NotReadable, Unsupported, UsageError
from mrs.model.batch import forward_batch
from mrs.model.decoder import Decoder
from mrs.model.vision.qwen import window_order
from mrs.request import ModelSource, Sampling
from mrs.source.find import open_checkpoint
from support.engines import Asked, make_engine

TOLERANCE = 1e-4
CHUNK = 7


@pytest.fixture(scope="module", params=QWEN_VL, ids=lambda case: case.id)
def reference(request: pytest.FixtureRequest, vision_references) -> VisionReference:
    return vision_references(request.param)


@pytest.fixture(scope="module")
def vision_model(reference: VisionReference) -> LoadedVisionModel:
    return load_vision_model(reference.folder)


def as_older(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers 4 writes it: what is the text's lies among the rest."""
    text = dict(config["text_config"])
    rope = dict(text.pop("rope_parameters"))
    text["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    text["rope_scaling"] = {"type": "mrope" if kind == "default" else kind, **rope}
    del text["layer_types"], text["model_type"]
    tower = dict(config["vision_config"])
    own = {"in_chans": tower.pop("in_channels"), "spatial_patch_size": tower["patch_size"]}
    kept = {key: value for key, value in config.items() if key != "text_config"}
    return {**kept, **text, "vision_config": {**tower, **own}}


def as_newer(name: str) -> str:
    """A tensor's name in transformers' own classes."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


def respelled(folder: Path, target: Path, spelling: str) -> Path:
    shutil.copytree(folder, target)
    if spelling == "older":
        path = target / "config.json"
        config = as_older(json.loads(path.read_text()))
        path.write_text(json.dumps(config))
        path = target / "preprocessor_config.json"
        images = json.loads(path.read_text())
        size = images.pop("size")
        images |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        path.write_text(json.dumps(images))
    else:
        path = target / "model.safetensors"
        tensors = load_file(path)
        assert any(name.startswith("visual.") for name in tensors)
        save_file({as_newer(name): tensor for name, tensor in tensors.items()}, path)
    return target


@pytest.mark.parametrize("spelling", ["older", "newer"])
def test_other_spellings(reference: VisionReference, tmp_path: Path, spelling: str) -> None:
    folder = respelled(reference.folder, tmp_path / spelling, spelling)
    model, prompt = load_vision_model(folder), reference.prompts[2]
    if "odd" in reference.case.name and spelling == "older":
        assert not json.loads((folder / "config.json").read_text()).get("layer_types")
    ids, images = model.shown(prompt.text, prompt.images)
    assert ids == prompt.ids
    assert difference(Conversation(model).feed(ids, images), prompt.logits) < TOLERANCE
    plain = describe(open_checkpoint(ModelSource(str(folder), "safetensors")))
    assert plain.spec.vision is None
    assert plain.parameters == tuple(
        p for p in model.description.parameters if not p.name.startswith("vision.")
    )


def test_text_alone(reference: VisionReference, vision_model: LoadedVisionModel) -> None:
    """Text turns as it does in a model that never saw; so does the model read as plain."""
    prompt = reference.prompts[0]
    one = sequence_input(
        vision_model.decoder, Conversation(vision_model).cache, (), prompt.ids[:8], 8
    )
    assert (one.offset, one.positions) == (0, None)
    checkpoint = open_checkpoint(ModelSource(str(reference.folder), "safetensors"))
    spec = describe(checkpoint).spec
    devices = [torch.device("cpu")] * len(spec.layers)
    plain = Decoder(spec, vision_model.weights, devices, torch.float32)
    cache = plain.new_cache(50, 512)
    one = sequence_input(plain, cache, (), prompt.ids, len(prompt.ids))
    one = replace(one, logits_rows=range(len(prompt.ids)))
    with torch.inference_mode():
        logits = plain.forward(forward_batch([one]), [cache])
    assert difference(logits, prompt.logits) < TOLERANCE


def test_text_goes_on_behind_the_picture(
    vision_model: LoadedVisionModel, reference: VisionReference
) -> None:
    """Pieces of a prompt stand where they stand in the whole of it, a token at a time too."""
    prompt = reference.prompts[2]
    ids, images = vision_model.shown(prompt.text, prompt.images)
    cache = Conversation(vision_model).cache

    def positions(fed: range) -> torch.Tensor:
        cache.length = fed.start
        one = sequence_input(
            vision_model.decoder, cache, images, ids[fed.start : fed.stop], len(ids)
        )
        if one.positions is not None:
            return one.positions
        return torch.arange(fed.start, fed.stop).repeat(3, 1) + one.offset

    whole = positions(range(len(ids)))
    for step in (1, 4, CHUNK):
        parts = [
            positions(range(start, min(start + step, len(ids))))
            for start in range(0, len(ids), step)
        ]
        assert torch.equal(torch.cat(parts, dim=1), whole)
    place = 0
    for at in range(len(ids)):
        shown = next((s for s in images if at in s.positions), None)
        if shown is None:
            assert whole[:, at].tolist() == [place] * 3
            place += 1
            continue
        rows, columns = shown.image.shape.grid
        number = at - shown.positions[0]
        expected = [place, place + number // columns, place + number % columns]
        assert whole[:, at].tolist() == expected
        if number == rows * columns - 1:
            place += max(rows, columns)


def test_one_goes_on_inside_an_image(
    vision_model: LoadedVisionModel, reference: VisionReference
) -> None:
    """Tokens computed before a cancellation, in the middle of an image, serve the next reply."""
    prompt = reference.prompts[1]
    settings = Sampling(
        temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS
    )
    engine = make_engine(
        vision_model.decoder,
        planned_tokens=300,
        context_tokens=600,
        prefix_cache_n=4,
        chunk_tokens=CHUNK,
    )
    ids, images = vision_model.shown(prompt.text, prompt.images)
    first = Asked.of(engine, ids, settings, images).sequence
    engine.step()
    first.abort()
    engine.step()
    assert first.finish_reason == "cancelled"
    assert CHUNK in images[0].positions
    ids, images = vision_model.shown(prompt.text, prompt.images)
    second = Asked.of(engine, ids, settings, images)
    assert second.finish() == reference.reply
    assert second.sequence.num_cached_tokens == CHUNK


@pytest.mark.parametrize(
    ("rows", "columns", "side"), [(8, 12, 4), (7, 10, 4), (2, 9, 8), (3, 1, 1)]
)
def test_windows(rows: int, columns: int, side: int) -> None:
    """They are transformers' windows, those of one size next to each other."""
    order, cuts = window_order(rows, columns, side)
    ours = [set(window.tolist()) for window in order.tensor_split(cuts)]
    index, ends = get_vision_window_index(torch.tensor([[1, rows, columns]]), 1, side, 1)
    theirs = [set(window.tolist()) for window in index.tensor_split(ends[1:-1].tolist())]
    assert sorted(map(sorted, ours)) == sorted(map(sorted, theirs))
    sizes = [len(window) for window in ours]
    assert len(list(groupby(sizes))) <= 4


SCALE = PixelScale((0.5,) * 3, (0.5,) * 3)


def layout(patch: int, merge: int, least: int, most: int) -> DynamicLayout:
    return DynamicLayout(patch, patch * merge, least, most, SCALE, "bicubic", "<p>")


@given(
    st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 30_000), st.integers(30_000, 10**7)
)
def test_sizes(height: int, width: int, least: int, most: int) -> None:
    ours = layout(14, 2, least, most)
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(UsageError, match="too narrow"):
            ours.shape(height, width)
        return
    shape = ours.shape(height, width)
    assert shape.pixels[1:] == smart_resize(height, width, 28, least, most)
    assert shape.rows * 28 * 28 == prod(shape.pixels[1:])
    assert shape.patches == 4 * shape.rows
    assert shape.text == "<p>" * shape.rows


def layouts() -> Iterator[DynamicLayout]:
    for rows_least, rows_most in [(1, 1), (1, 3), (2, 7), (3, 12), (4, 50), (9, 9), (30, 31)]:
        yield layout(2, 2, rows_least * 16, rows_most * 16)
        yield layout(3, 1, rows_least * 9 - 4, rows_most * 9 + 4)


@pytest.mark.parametrize("edge", [1, 2, 5, 17, 40])
def test_the_largest_is_a_bound(edge: int) -> None:
    for ours in layouts():
        most = ours.largest(edge)
        assert most.rows == prod(most.grid)
        sizes = [(h, w) for h in range(1, edge + 1) for w in range(1, h + 1)]
        found = max(ours.shape(*size).rows for size in sizes)
        assert found <= most.rows <= 2 * found + 2


def test_the_largest_is_exact_for_large_pictures() -> None:
    published = layout(14, 2, 56 * 56, 12_845_056)
    for edge in (448, 1024, 2000):
        assert published.largest(edge).rows == published.shape(edge, edge).rows
    assert published.largest(10_000).rows == 12_845_056 // 28**2


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
#: Name: parameters, as the models' pages and weight indexes have them, family, text, tower.
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
    ("changes", "error", "told"),
    [
        ({"rope_scaling": {"mrope_section": [16, 24, 25]}}, NotReadable, "with the sum 64"),
        ({"rope_scaling": {"mrope_section": [32, 32]}}, NotReadable, "with the sum 64"),
        ({"rope_scaling": {"mrope_section": 64}}, NotReadable, "not a list"),
        ({"rope_scaling": {"mrope_section": [64, 0, 0]}}, NotReadable, "at least 1"),
        ({"rope_scaling": {"type": "mrope"}}, NotReadable, "lacks 'mrope_section'"),
        (
            {"rope_scaling": {"mrope_section": [16, 24, 24], "mrope_interleaved": True}},
            Unsupported,
            "mrope_interleaved",
        ),
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
def test_what_cannot_be_read(changes: dict[str, Any], error: type[MrsError], told: str) -> None:
    config = {**_TEXT_7B, "model_type": "qwen2_5_vl", "vision_config": _TOWER_25}
    described("as it is", config)
    with pytest.raises(error, match=told):
        described("bad", {**config, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"min_pixels": 10**12}, NotReadable, "min_pixels"),
        ({"max_pixels": 0}, NotReadable, "max_pixels"),
        ({"max_pixels": None, "size": {"longest_edge": "big"}}, NotReadable, "max_pixels"),
        ({"merge_size": 4}, Unsupported, "merge_size"),
        ({"patch_size": 16}, Unsupported, "patch_size"),
        ({"do_resize": False}, Unsupported, "do_resize"),
    ],
)
def test_how_pictures_cannot_be_prepared(
    changes: dict[str, Any], error: type[MrsError], told: str
) -> None:
    config = {**_TEXT_7B, "model_type": "qwen2_5_vl", "vision_config": _TOWER_25}
    with pytest.raises(error, match=told):
        described("bad", config, {**_IMAGES, **changes})
