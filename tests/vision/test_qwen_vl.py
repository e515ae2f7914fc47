"""Qwen2-VL and Qwen2.5-VL: other spellings of their files, and what no other family has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
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

from mrs.architecture.describe import describe
from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision_spec import PixelScale
from mrs.engine.multimodal import sequence_input
from mrs.errors import UsageError
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
    """config.json as transformers 4 writes it: the text's fields are at the top level."""
    text = dict(config["text_config"])
    rope = dict(text.pop("rope_parameters"))
    text["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    text["rope_scaling"] = {"type": "mrope" if kind == "default" else kind, **rope}
    del text["layer_types"], text["model_type"]
    tower = dict(config["vision_config"])
    own = {"in_chans": tower.pop("in_channels"), "spatial_patch_size": tower["patch_size"]}
    rest = {key: value for key, value in config.items() if key != "text_config"}
    return {**rest, **text, "vision_config": {**tower, **own}}


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


@pytest.mark.few(4)
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
    """Text has the positions of a model without vision, also if the model is read as such."""
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
    one = one._replace(logits_rows=range(len(prompt.ids)))
    with torch.inference_mode():
        logits = plain.forward(forward_batch([one]), [cache])
    assert difference(logits, prompt.logits) < TOLERANCE


def test_positions_go_on_after_an_image(
    vision_model: LoadedVisionModel, reference: VisionReference
) -> None:
    """A prompt's chunks, even of one token, have the positions that the whole prompt gives."""
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
    position = 0
    for at in range(len(ids)):
        shown = next((s for s in images if at in s.positions), None)
        if shown is None:
            assert whole[:, at].tolist() == [position] * 3
            position += 1
            continue
        rows, columns = shown.image.shape.grid
        index = at - shown.positions[0]
        expected = [position, position + index // columns, position + index % columns]
        assert whole[:, at].tolist() == expected
        if index == rows * columns - 1:
            position += max(rows, columns)


def test_a_cached_prefix_may_end_inside_an_image(
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
    """They are transformers' windows, sorted so that windows of one size are adjacent."""
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


def test_the_largest_is_exact_for_large_images() -> None:
    published = layout(14, 2, 56 * 56, 12_845_056)
    for edge in (448, 1024, 2000):
        assert published.largest(edge).rows == published.shape(edge, edge).rows
    assert published.largest(10_000).rows == 12_845_056 // 28**2
