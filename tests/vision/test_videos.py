"""Videos give the logits that transformers computes of their frames, whatever the chunks are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from lfm3_vl_cases import LFM3_VL
from PIL import Image
from qwen3_cases import QWEN3_VL
from qwen_cases import QWEN_VL
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_case import WORDS, VisionCase
from vision_reference import undecided
from vision_running import Conversation, LoadedVisionModel, difference, load_vision_model

from mrs.engine.engine import Engine
from mrs.engine.image_input import ImageInput, place_images
from mrs.engine.multimodal import sequence_input
from mrs.media.media_loader import MediaLoader
from mrs.media.read_media import read_media
from mrs.request import Sampling
from support.engines import Asked, make_engine
from support.suites import kinds
from support.video_files import frames_of, video

TOLERANCE = 1e-4
GREEDY = Sampling(temperature=0.0, max_tokens=4)
CASES = (*QWEN_VL, *QWEN3_VL[:3], *QWEN3_VL[4:6], QWEN3_VL[6], *LFM3_VL)
#: Families whose videos are images with a time before each.
STAMPED = ("qwen3", "lfm3")
#: Seconds of the video: text after the longer one goes on at its last position in time.
SECONDS = {"short": 4.0, "long": 8.0}
#: Every family with some length.
pytestmark = [pytest.mark.values, pytest.mark.each_family]


@dataclass(frozen=True)
class Shown:
    """A prompt with a video, and what transformers is given of it."""

    model: LoadedVisionModel
    ids: list[int]
    images: list[ImageInput]
    pixels: Tensor
    grid: tuple[int, int, int]
    interval: float | None


@pytest.fixture(scope="module", params=kinds(CASES, ()))
def case(request: pytest.FixtureRequest) -> VisionCase:
    return request.param


@pytest.fixture(scope="module")
def folder(case: VisionCase, vision_references: Any, tmp_path_factory: pytest.TempPathFactory):
    """The saved model, with settings for videos."""
    target = tmp_path_factory.mktemp(case.id) / "model"
    shutil.copytree(vision_references(case).folder, target)
    images = json.loads((target / "preprocessor_config.json").read_text())
    settings = {key: images[key] for key in ("image_mean", "image_std", "patch_size", "merge_size")}
    size = dict(images["size"])
    if case.family.startswith(STAMPED):
        size = {key: value * 8 for key, value in size.items()}
    settings |= {"size": size, "fps": 2.0, "temporal_patch_size": images["temporal_patch_size"]}
    (target / "video_preprocessor_config.json").write_text(json.dumps(settings))
    return target


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedVisionModel:
    return load_vision_model(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()


def shown(model: LoadedVisionModel, path: Path, seconds: float, case: VisionCase) -> Shown:
    """The prompt as a run makes it, and the pixels that transformers makes of the same frames."""
    content = video(seconds)
    path.write_bytes(content)
    layout = model.vision.video
    assert layout is not None
    loader = MediaLoader(model.vision.layout, None, layout)
    (media,) = loader.load(
        [{"role": "user", "content": "\ufffc", "images": [read_media(str(path))]}]
    )
    assert media.is_video
    text = media.text
    ids = model.ids(f"w1 w2 {text} w3 w4 w5", ())
    images = place_images(model.vision, ids, media.images)
    frames = frames_of(content)
    chosen = layout.choose(len(frames), 10.0)
    _, _, height, width = media.images[0].shape.pixels
    pixels, rows, columns = their_pixels(
        [frames[index] for index in chosen.indices], (width, height), layout.frames, case
    )
    interval = None
    if case.family == "qwen2_5_vl":
        interval = layout.frames / (len(chosen.indices) / len(frames) * 10.0)
    grid = (len(media.images), rows, columns)
    return Shown(model, ids, images, pixels, grid, interval)


def their_pixels(
    frames: Sequence[Any], size: tuple[int, int], at_once: int, case: VisionCase
) -> tuple[Tensor, int, int]:
    """The patches of frames, each from transformers' image processor, joined in time."""
    tower = case.config["vision_config"]
    patch, merge = tower["patch_size"], tower.get("spatial_merge_size", 2)
    prepare = Qwen2VLImageProcessorPil(
        patch_size=patch, merge_size=merge, temporal_patch_size=at_once, do_resize=False
    )
    prepare.image_mean, prepare.image_std = MEANS, DEVIATIONS
    made = [
        prepare(images=[Image.fromarray(each).resize(size, Image.Resampling.BICUBIC)])
        for each in frames
    ]
    one = [torch.as_tensor(each["pixel_values"]) for each in made]
    one = [each.view(len(each), 3, at_once, -1)[:, :, 0] for each in one]
    one += one[-1:] * (-len(one) % at_once)
    groups = [torch.stack(one[n : n + at_once], 2) for n in range(0, len(one), at_once)]
    _, rows, columns = torch.as_tensor(made[0]["image_grid_thw"])[0].tolist()
    return torch.cat([group.flatten(1) for group in groups]), rows, columns


MEANS, DEVIATIONS = Qwen2VLImageProcessorPil().image_mean, Qwen2VLImageProcessorPil().image_std


def expected_positions(given: Shown, case: VisionCase) -> Tensor:
    """(3, T): text goes on after the largest position so far (arXiv 2409.12191, § 2.1)."""
    if given.model.vision.positions == "plain":
        return torch.arange(len(given.ids)).repeat(3, 1)
    merge = case.config["vision_config"].get("spatial_merge_size", 2)
    rate = given.model.description.spec.vision.video
    images, rows, columns = given.grid[0], given.grid[1] // merge, given.grid[2] // merge
    step = 1.0
    if given.interval is not None:
        step = getattr(rate, "second_positions", None) * given.interval
    found: list[list[int]] = []
    shown_rows, start = 0, 0
    for token in given.ids:
        if token != WORDS + 1:
            position = max(map(max, found)) + 1 if found else 0
            found.append([position] * 3)
            start = position + 1
            continue
        image, row = divmod(shown_rows, rows * columns)
        is_one = case.family.startswith("qwen3")  # each image stands alone
        time = 0 if is_one else int(image * step)
        found.append([start + time, start + row // columns, start + row % columns])
        shown_rows += 1
    assert shown_rows == images * rows * columns
    return torch.tensor(found).T


@pytest.fixture(scope="module", params=SECONDS)
def given(
    request: pytest.FixtureRequest, model: LoadedVisionModel, case: VisionCase, tmp_path_factory
) -> Shown:
    path = tmp_path_factory.mktemp("video") / "a.mp4"
    return shown(model, path, SECONDS[request.param], case)


@torch.no_grad()
def their_inputs(given: Shown, positions: Tensor) -> dict[str, Tensor]:
    ids = torch.tensor([given.ids])
    places: dict[str, Tensor] = {}
    if given.model.vision.positions == "multimodal":
        kinds = (ids == WORDS + 1).int() * 2
        places = {"position_ids": positions[:, None], "mm_token_type_ids": kinds}
    return {
        "input_ids": ids,
        "pixel_values_videos": given.pixels,
        "video_grid_thw": torch.tensor([given.grid]),
        **places,
    }


@pytest.mark.few(3)
def test_pixels(given: Shown) -> None:
    """Ours, cut to patches as transformers does, are transformers'."""
    size = given.model.vision.tower.patches.size
    _, rows, columns = given.grid
    merge = rows // given.images[0].image.shape.grid[0]
    ours = []
    for image in given.images:
        pixels = image.image.pixels
        cut = pixels.view(len(pixels), 3, rows // merge, merge, size, columns // merge, merge, size)
        ours.append(cut.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1))
    assert (torch.cat(ours) - given.pixels).abs().max() < 1e-5


@pytest.mark.few(3)
def test_positions(given: Shown, case: VisionCase, theirs: Any) -> None:
    expected = expected_positions(given, case)
    for chunk in (len(given.ids), 7, 1):
        cache = Conversation(given.model).cache
        found = []
        for start in range(0, len(given.ids), chunk):
            cache.length = start
            part = given.ids[start : start + chunk]
            one = sequence_input(given.model.decoder, cache, given.images, part, len(given.ids))
            own = torch.arange(start, start + len(part)).repeat(3, 1) + one.offset
            found.append(own if one.positions is None else one.positions)
        assert torch.equal(torch.cat(found, dim=1), expected)
    if given.model.vision.positions == "plain":
        return
    ids = torch.tensor([given.ids])
    intervals = {} if given.interval is None else {"second_per_grid_ts": [given.interval]}
    known, _ = theirs.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == WORDS + 1).int() * 2,
        video_grid_thw=torch.tensor([given.grid]),
        **intervals,
    )
    # transformers 5 lets text after a video of the first two families forget how long it is.
    end = given.ids.index(WORDS + 1) + given.ids.count(WORDS + 1)
    end = len(given.ids) if case.family.startswith("qwen3") else end
    assert torch.equal(known[:, 0, :end], expected[:, :end])


def test_logits(given: Shown, case: VisionCase, theirs: Any) -> None:
    expected = theirs(**their_inputs(given, expected_positions(given, case))).logits[0]
    for chunk in (512, 7):
        logits = Conversation(given.model, chunk).feed(given.ids, given.images)
        assert difference(logits, expected) < TOLERANCE


@pytest.fixture(scope="module")
def ours(given: Shown) -> Tensor:
    """Logits whose equality with those of transformers another test shows."""
    return Conversation(given.model).feed(given.ids, given.images)


@pytest.mark.few(2)
def test_split_over_two_logical_devices(given: Shown, ours: Tensor) -> None:
    devices = torch.device("cpu"), torch.device("cpu", 0)
    split = load_vision_model(given.model.folder, devices=devices)
    assert difference(Conversation(split).feed(given.ids, given.images), ours) < TOLERANCE


@pytest.mark.few(3)
def test_bf16(given: Shown, case: VisionCase, theirs: Any, ours: Tensor) -> None:
    half = load_vision_model(given.model.folder, dtype="bf16")
    decided = ~undecided(theirs, their_inputs(given, expected_positions(given, case)))
    assert decided.float().mean() > 0.3
    logits = Conversation(half).feed(given.ids, given.images)
    assert difference(logits[decided], ours[decided]) < case.half_tolerance


@pytest.mark.few(3)
def test_prefix_cache(given: Shown) -> None:
    """A video is remembered, and another in its place is not taken for it."""
    length = len(given.ids) + 16

    def engine(remembered: int) -> Engine:
        return make_engine(
            given.model.decoder,
            planned_tokens=2 * length,
            context_tokens=length,
            prefix_cache_n=remembered,
        )

    def reply(
        engine: Engine, ids: Sequence[int], images: Sequence[ImageInput]
    ) -> tuple[list[int], int]:
        asked = Asked.of(engine, ids, GREEDY, [replace(each) for each in images])
        return asked.finish(), asked.sequence.num_cached_tokens

    own = [replace(each, features=None) for each in given.images]
    others = [replace(each, image=mirrored(each.image)) for each in own]
    remembering, last = engine(4), own[-1].positions[-1]
    said, _ = reply(remembering, given.ids, own)
    more = [*given.ids, *said, 7, 8]
    for images, is_known in ((own, True), (others, False)):
        tokens, cached = reply(remembering, more, images)
        assert (cached > last) == is_known
        assert tokens == reply(engine(0), more, images)[0]


def mirrored(image: Any) -> Any:
    """Other frames than those of `image`, in the same places."""
    frames = (each.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for each in image.frames)
    return replace(image, frames=tuple(frames), digest=image.digest + 1000)
