"""From a video file to the images that a model gets of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from math import prod

from PIL.Image import Image

from mrs.architecture.vision_spec import ChosenFrames, ImageShape, VideoLayout, VideoShape
from mrs.media.image_processors import PreparedFrames
from mrs.media.image_source import unreadable
from mrs.media.media_memory import MediaMemory
from mrs.media.pixels import resize
from mrs.media.video_file import DEFAULT_VIDEO_LIMITS, VideoLimits, read_facts, read_frames
from mrs.request import Media


def prepare_video(
    layout: VideoLayout,
    video: Media,
    memory: MediaMemory,
    max_edge: int | None = None,
    limits: VideoLimits = DEFAULT_VIDEO_LIMITS,
) -> tuple[list[PreparedFrames], str]:
    """The images of a video, decoded within `memory`, and what the prompt has for them.

    Frames whose longer edge exceeds `max_edge` pixels are scaled down to that first. Raises
    NotReadable, also if the frames that the model uses have more bytes than allowed.
    """
    facts = read_facts(video, memory, limits)
    chosen = layout.choose(facts.frames, facts.rate)
    shapes: list[VideoShape] = []

    def scaled(frame: Image) -> Image:
        if not shapes:  # the first frame says how the file is rotated
            shapes.append(_shape(layout, chosen, frame, max_edge))
            _check_bytes(video, shapes[0], limits)
        _, _, height, width = shapes[0].images[0].pixels
        return resize(frame, height, width, layout.resampling)

    frames = read_frames(video, chosen.indices, scaled, memory, limits)
    (shape,) = shapes
    frames += frames[-1:] * (len(shape.images) * layout.frames - len(frames))
    groups = [frames[at : at + layout.frames] for at in range(0, len(frames), layout.frames)]
    images = [
        PreparedFrames(tuple(group), layout.scale, one, _digest(group, one))
        for group, one in zip(groups, shape.images, strict=True)
    ]
    return images, shape.text


def _shape(
    layout: VideoLayout, chosen: ChosenFrames, frame: Image, max_edge: int | None
) -> VideoShape:
    shrink = 1.0 if max_edge is None else min(max_edge / max(frame.size), 1)
    width, height = (max(round(edge * shrink), 1) for edge in frame.size)
    return layout.shape(chosen, height, width)


def _check_bytes(video: Media, shape: VideoShape, limits: VideoLimits) -> None:
    needed = sum(prod(image.pixels) for image in shape.images)
    if needed > limits.used_bytes:
        raise unreadable(
            video.name,
            f"its {len(shape.images)} images have more than {limits.used_bytes / 2**20:g} MiB",
            hint="scale them down with --max-edge, or cut the video",
            kind="video",
        )


def _digest(frames: Sequence[Image], shape: ImageShape) -> int:
    """The first 63 bits of the SHA-256 of the pixels and of where they are in time."""
    hashed = hashlib.sha256(f"{shape.pixels} {shape.time} {shape.span} ".encode())
    for part in _bytes_of(frames):
        hashed.update(part)
    return int.from_bytes(hashed.digest()[:8], "big") >> 1


def _bytes_of(frames: Sequence[Image]) -> Iterator[bytes]:
    return (frame.tobytes() for frame in frames)
