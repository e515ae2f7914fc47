"""Frames, sizes and positions of videos are those of transformers' video processors."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.video_utils import VideoMetadata

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision.video_reader import read_running, read_stamped
from mrs.architecture.vision_spec import ChosenFrames, PixelScale, VideoLayout
from mrs.config.config import Config
from mrs.errors import NotReadable, UsageError

_SCALE = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_VIDEOS = {"size": {"shortest_edge": 128 * 784, "longest_edge": 768 * 784}, **_SCALE}
_LONG = {"size": {"shortest_edge": 4096, "longest_edge": 25_165_824}, **_SCALE}


def processors() -> dict[str, Any]:
    """transformers' two video processors; what they need torchvision for is never called."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    stand_ins = {name: ModuleType(name) for name in (*names, f"{names[-1]}.functional")}
    missing = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(missing)
    try:
        return {
            family: importlib.import_module(f"transformers.models.{family}.{module}")
            for family, module in (
                ("qwen2_vl", "video_processing_qwen2_vl"),
                ("qwen3_vl", "video_processing_qwen3_vl"),
            )
        }
    finally:
        for name in missing:
            del sys.modules[name]


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return processors()


def image(patch: int) -> DynamicLayout:
    scale = PixelScale((0.5,) * 3, (0.5,) * 3)
    return DynamicLayout(patch, 2 * patch, 1, 2, scale, "bicubic", "<p>")


def running(frames: int = 2, **settings: Any) -> VideoLayout:
    return read_running(Config({**_VIDEOS, **settings}, "x"), image(14), frames, 9)


def stamped(frames: int = 2, **settings: Any) -> VideoLayout:
    return read_stamped(Config({**_LONG, **settings}, "x"), image(16), frames, 9)


def their_choice(module: Any, name: str, frames: int, total: int, rate: float, fps: float) -> Any:
    kind = getattr(module, name)
    own = SimpleNamespace(
        num_frames=None, fps=fps, temporal_patch_size=frames, min_frames=4, max_frames=768
    )
    metadata = VideoMetadata(total_num_frames=total, fps=rate)
    return np.asarray(kind.sample_frames(own, metadata)).tolist()


@pytest.mark.parametrize("rate", [0.5, 7, 10, 23.976, 29.97, 60])
def test_the_frames_are_theirs(theirs: dict[str, Any], rate: float) -> None:
    for total in (4, 5, 6, 7, 11, 30, 49, 101, 240, 899, 1000, 4321):
        for fps in (1.0, 2.0, 3.3):
            for frames in (2, 3):
                ours = running(frames, fps=fps).choose(total, rate).indices
                module = theirs["qwen2_vl"]
                name = "Qwen2VLVideoProcessor"
                found = their_choice(module, name, frames, total, rate, fps)
                # Rounding may give them one frame more, at the end or after it.
                assert found[: len(ours)] == [*ours]
                assert found[len(ours) :] in ([], [total - 1], [total])
            ours = stamped(fps=fps).choose(total, rate).indices
            module = theirs["qwen3_vl"]
            name = "Qwen3VLVideoProcessor"
            assert [*ours] == their_choice(module, name, 2, total, rate, fps)


class _Resized:
    """Stands for frames: it says how many there are, and their size."""

    def __init__(self, frames: int, height: int, width: int) -> None:
        self.shape = (1, frames, 3, height, width)


def their_size(module: Any, name: str, layout: Any, count: int, size: tuple[int, int]) -> Any:
    """The height and width to which their processor resizes frames."""
    found: list[tuple[int, int]] = []
    base = SimpleNamespace(
        resize=lambda image, size, resample: found.append((size.height, size.width))
    )
    kind = type("Sized", (getattr(module, name),), {"__init__": lambda self: None})
    own = kind()
    own.max_video_tokens = layout.most_rows or 1
    source = module.BaseVideoProcessor.resize
    module.BaseVideoProcessor.resize = lambda self, **given: base.resize(**given)
    try:
        own.resize(
            _Resized(count, *size),
            size=module.SizeDict(
                shortest_edge=layout.squares.min_pixels, longest_edge=layout.squares.max_pixels
            ),
            resample=None,
            factor=layout.squares.factor,
            temporal_factor=layout.frames,
            cap_pixels_per_frame=layout.most_rows is not None,
        )
    finally:
        module.BaseVideoProcessor.resize = source
    return found[0]


@given(
    count=st.integers(2, 300),
    size=st.tuples(st.integers(20, 3000), st.integers(20, 3000)),
    is_capped=st.booleans(),
    tokens=st.sampled_from([None, 50, 9000]),
)
def test_the_sizes_are_theirs(
    count: int, size: tuple[int, int], is_capped: bool, tokens: int | None
) -> None:
    given = {"cap_pixels_per_frame": is_capped, "max_video_tokens": tokens}
    for layout, family, name in (
        (running(**given), "qwen2_vl", "Qwen2VLVideoProcessor"),
        (stamped(**given), "qwen3_vl", "Qwen3VLVideoProcessor"),
    ):
        chosen = ChosenFrames(tuple(range(count)), count, 2.0)
        try:
            shape = layout.shape(chosen, *size)
        except UsageError:
            assert max(size) > 200 * min(size)
            continue
        expected = their_size(_THEIRS[family], name, layout, count, size)
        one = shape.images[0]
        assert one.pixels == (2, 3, *expected)
        assert len(shape.images) == -(-count // 2)
        assert one.rows == one.grid[0] * one.grid[1] == one.patches // 4


_THEIRS = processors()


def test_times() -> None:
    """A second has as many positions as the config says, and text goes on after the last one."""
    layout = read_running(Config(_VIDEOS, "x"), image(14), 2, 9)
    chosen = layout.choose(100, 25.0)  # 4 s: 8 frames, 4 images
    assert len(chosen.indices) == 8
    shapes = layout.shape(chosen, 280, 280).images
    assert [shape.time for shape in shapes] == [0, 1, 2, 3]
    rows = max(shapes[0].grid)
    assert [shape.span for shape in shapes] == [0, 0, 0, rows]
    timed = replace(layout, second_positions=25)
    shapes = timed.shape(chosen, 280, 280).images
    assert [shape.time for shape in shapes] == [0, 25, 50, 75]
    assert shapes[-1].span == max(rows, 76)


def test_stamps() -> None:
    layout = stamped()
    chosen = layout.choose(30, 10.0)
    assert chosen.indices == (0, 6, 12, 17, 23, 29)
    shape = layout.shape(chosen, 64, 64)
    row = "<|video_pad|>" * shape.images[0].rows
    assert shape.text == "".join(
        f"<{time} seconds><|vision_start|>{row}<|vision_end|>" for time in ("0.3", "1.4", "2.6")
    )


def test_few_frames_are_repeated() -> None:
    for layout in (running(), stamped()):
        chosen = layout.choose(1, 30.0)
        assert chosen.indices == (0,)
        assert len(layout.shape(chosen, 64, 64).images) == 1
        assert len(layout.shape(layout.choose(3, 30.0), 64, 64).images) in (1, 2)


@pytest.mark.parametrize(
    "settings",
    [{"fps": 0}, {"max_frames": 2}, {"max_frames": 10**9}, {"min_frames": 1}, {"fps": "2"}],
)
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(NotReadable):
        running(**settings)
