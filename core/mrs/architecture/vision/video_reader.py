"""Read the layouts of videos from video_preprocessor_config.json."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from mrs.architecture.vision.dynamic_layout import DynamicLayout, read_dynamic
from mrs.architecture.vision.video_layouts import TOKEN, RunningVideo, StampedVideo
from mrs.config.config import Config
from mrs.errors import NotReadable

#: Bound on the frames of a video that a config may ask for.
_MOST_FRAMES = 2**14


def read_running(videos: Config, image: DynamicLayout, frames: int, token_id: int) -> RunningVideo:
    """The layout in video_preprocessor_config.json of Qwen2-VL; `image` is that of images."""
    return RunningVideo(*_read(videos, image, frames, 128_000), token_id)


def read_stamped(videos: Config, image: DynamicLayout, frames: int, token_id: int) -> StampedVideo:
    """The layout in video_preprocessor_config.json of Qwen3-VL; `image` is that of images."""
    video = StampedVideo(*_read(videos, image, frames, 768), token_id)
    return replace(video, squares=replace(video.squares, grown="at_once"))


def _read(
    videos: Config, image: DynamicLayout, frames: int, rows: int
) -> tuple[DynamicLayout, int, float, int, int, int | None]:
    """What the layouts have in common; `rows` is the default of `max_video_tokens`."""
    videos.allow_only("temporal_patch_size", frames)
    merge = image.factor // image.patch_size
    squares = read_dynamic(videos, image.patch_size, merge, TOKEN)
    rate = videos.positive_number("fps", 2)
    least, most = videos.positive("min_frames", 4), videos.positive("max_frames", 768)
    if not frames <= least <= most <= _MOST_FRAMES or not isfinite(1 / rate):
        raise NotReadable(
            f"min_frames = {least} and max_frames = {most} are out of range", where=videos.where
        )
    is_capped = videos.flag("cap_pixels_per_frame", True)
    most_rows = videos.positive("max_video_tokens", rows) if is_capped else None
    return squares, frames, rate, least, most, most_rows
