"""What a model gets of a video: scaled frames, in bounded memory, made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision.video_layouts import RunningVideo
from mrs.architecture.vision.video_reader import read_running
from mrs.architecture.vision_spec import PixelScale
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.media.media_loader import MediaLoader
from mrs.media.media_memory import MediaMemory
from mrs.media.read_media import read_media
from mrs.media.video_file import VideoLimits
from mrs.media.video_frames import prepare_video
from mrs.request import Media
from support.video_files import video

_HALF = (0.5,) * 3
_IMAGES = DynamicLayout(6, 12, 144, 10**6, PixelScale(_HALF, _HALF), "bicubic", "<p>")


def film(name: str, content: bytes) -> Media:
    return Media.of(name, content, "video")


def layout(**settings: object) -> RunningVideo:
    size = {"shortest_edge": 144, "longest_edge": 10**6}
    given = {"size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, **settings}
    return read_running(Config(given, "x"), _IMAGES, 2, 9)


def test_scaled_down_first() -> None:
    content = video(2.0)
    for max_edge, size in ((None, (48, 60)), (32, (24, 36)), (24, (24, 24))):
        images, text = prepare_video(layout(), film("a.mp4", content), MediaMemory(), max_edge)
        assert len(images) == 2
        assert tuple(images[0].pixels.shape) == images[0].shape.pixels == (2, 3, *size)
        assert text.count("<|video_pad|>") == sum(image.shape.rows for image in images)


def test_frames_are_bounded() -> None:
    content = video(2.0)
    needed = 4 * 3 * 48 * 60
    prepare_video(
        layout(), film("a.mp4", content), MediaMemory(), limits=VideoLimits(used_bytes=needed)
    )
    with pytest.raises(NotReadable, match="its 2 images have more than"):
        prepare_video(
            layout(),
            film("a.mp4", content),
            MediaMemory(),
            limits=VideoLimits(used_bytes=needed - 1),
        )


def test_equal_frames_at_other_times_differ() -> None:
    """The caches of earlier prompts know them apart."""
    content = video(4.0)
    one, _ = prepare_video(layout(), film("a.mp4", content), MediaMemory())
    same, _ = prepare_video(layout(), film("b.mp4", content), MediaMemory())
    assert [image.digest for image in one] == [image.digest for image in same]
    assert len({image.digest for image in one}) == len(one) == 4
    timed, _ = prepare_video(
        replace(layout(), second_positions=5), film("a.mp4", content), MediaMemory()
    )
    assert one[0].digest == timed[0].digest
    assert all(a.digest != b.digest for a, b in zip(one[1:], timed[1:], strict=True))


def test_a_video_is_prepared_once(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(video(2.0))
    loader = MediaLoader(_IMAGES, None, layout())
    messages = [{"role": "user", "content": "\ufffc", "images": [read_media(str(path))]}]
    (first,), (second,) = loader.load(messages), loader.load(messages)  # type: ignore[arg-type]
    assert first is second
    path.write_bytes(video(1.0))
    changed = [{**messages[0], "images": [read_media(str(path))]}]
    assert loader.load(changed)[0] is not first  # type: ignore[arg-type]
