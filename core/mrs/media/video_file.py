"""Reads frames of a video with PyAV, within limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable
from mrs.media.av_container import av_container
from mrs.media.image_source import unreadable
from mrs.media.media_memory import MediaMemory
from mrs.media.mpeg4_size import mpeg4_size
from mrs.process.request_memory import PIXEL_BYTES, VIDEO_PICTURES
from mrs.request import Media

if TYPE_CHECKING:
    from PIL.Image import Image

#: The only containers that are opened: others, such as playlists, could name further files.
_CONTAINERS = "mov,mp4,matroska,webm,avi"
#: The only decoders, by FFmpeg's names, that read a stranger's bytes: those that browsers and
#: cameras keep in use. FFmpeg has hundreds, many of which hardly anyone looks after.
CODECS = ("h264", "hevc", "av1", "vp9", "vp8", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg")
#: All decoders that FFmpeg may choose for these.
_DECODERS = ",".join((*CODECS, "libdav1d", "libaom-av1", "libvpx", "libvpx-vp9"))
_KNOWN_RATES = (0.01, 1000.0)
_MOST_THREADS = 4
#: Later frames may exceed the file's width and height by this many pixels: decoders round up, and
#: that of MPEG-4 counts small frames several times.
_MARGIN = 256
#: Of a pixel in the largest formats: 4 values of 16 bits.
_MOST_PIXEL_BYTES = 8
#: Its colours are of half as many pixels along both edges.
_MPEG4_PIXEL_BYTES = 2
#: Most pictures that are decoded, in one thread, to find what a file's head does not say.
_PROBED_PICTURES = 4
#: A name that no decoder has.
_NO_DECODER = "none"


@dataclass(frozen=True)
class VideoLimits:
    """Limits for one video: pixels of a frame, frames, bytes of those used."""

    pixels: int = 16 * 2**20
    frames: int = 2**20
    used_bytes: int = 2**30


DEFAULT_VIDEO_LIMITS = VideoLimits()


@dataclass(frozen=True)
class VideoFacts:
    """What a file says of its video: frames, frames a second, and pixels along the edges."""

    frames: int
    rate: float
    width: int
    height: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def read_facts(
    video: Media, memory: MediaMemory, limits: VideoLimits = DEFAULT_VIDEO_LIMITS
) -> VideoFacts:
    """What the file says of its video; of some, the library decodes the first frames for that.

    Raises Unsupported without PyAV, and NotReadable with a line that names the video.
    """
    with memory.decoding(), _opened(video, memory, limits) as (container, stream):
        # Headers may lack the number of frames, or have a wrong one.
        frames = sum(1 for packet in container.demux(stream) if packet.size)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        width, height = stream.codec_context.width, stream.codec_context.height
    if not frames or width * height == 0:
        raise _unreadable(video, "it has no frames")
    if frames > limits.frames:
        raise _unreadable(video, f"it has more than {limits.frames:,} frames")
    if not _KNOWN_RATES[0] <= rate <= _KNOWN_RATES[1]:
        raise _unreadable(video, f"it has {rate:g} frames a second")
    return VideoFacts(frames, rate, width, height)


def read_frames(
    video: Media,
    indices: Sequence[int],
    use: Callable[[Image], Image],
    memory: MediaMemory,
    limits: VideoLimits = DEFAULT_VIDEO_LIMITS,
) -> list[Image]:
    """What `use` makes of the frames at ascending `indices`, upright and in mode RGB.

    Frames that the end of a file lacks are the last one that it has. Raises as `read_facts` does.
    """
    frames: list[Image] = []
    with memory.decoding(), _opened(video, memory, limits) as (container, stream):
        memory.take(video, _decoding_bytes(stream.codec_context))
        for index, frame in enumerate(container.decode(stream)):
            if index == indices[len(frames)]:
                frames.append(use(_upright(frame)))
                while len(frames) < len(indices) and indices[len(frames)] == index:
                    frames.append(frames[-1])
            if len(frames) == len(indices):
                return frames
    if not frames:
        raise _unreadable(video, "none of its frames can be decoded")
    return frames + frames[-1:] * (len(indices) - len(frames))


@contextmanager
def _opened(video: Media, memory: MediaMemory, limits: VideoLimits) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; its errors become NotReadable.

    The library may decode a few frames when it opens a file: they have their room before.
    """
    with _video_stream(video, limits, decoders=_NO_DECODER) as (_, stream):
        width, height = _size(stream.codec_context)
    if width * height > limits.pixels:
        raise _too_large(video, limits)
    most_pixels = _most_pixels(width, height)
    size_bytes = _MOST_PIXEL_BYTES * width * height
    if not most_pixels:  # neither the file nor the stream in it says how large they are
        most_pixels = limits.pixels + _MARGIN**2
        size_bytes = _MPEG4_PIXEL_BYTES * limits.pixels
    memory.take(video, _PROBED_PICTURES * size_bytes)
    with _video_stream(video, limits, most_pixels=most_pixels) as opened:
        yield opened


@contextmanager
def _video_stream(
    video: Media, limits: VideoLimits, decoders: str = _DECODERS, most_pixels: int = 0
) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream, whose first frames have at most `most_pixels`."""
    options = {"max_pixels": str(most_pixels)} if most_pixels else {}
    with av_container(video, _CONTAINERS, decoders, options) as container:
        if not container.streams.video:
            raise _unreadable(video, "it has no video")
        stream = container.streams.video[0]
        context = stream.codec_context
        if context is None or context.codec.canonical_name not in CODECS:
            raise _unreadable(video, f"it is in none of the formats {', '.join(CODECS)}")
        if context.width * context.height > limits.pixels:
            raise _too_large(video, limits)
        # Of later frames, too.
        context.options = {"max_pixels": str(_most_pixels(*_size(context)) or limits.pixels)}
        context.thread_count = min(os.cpu_count() or 1, _MOST_THREADS)
        yield container, stream


def _size(context: Any) -> tuple[int, int]:
    """The width and the height of frames; 0 if they are not known before one is decoded.

    Files of the container mp4 do not say it for the format mpeg4, but the stream in them does.
    """
    if context.width * context.height == 0 and context.codec.canonical_name == "mpeg4":
        return mpeg4_size(context.extradata or b"") or (0, 0)
    return context.width, context.height


def _most_pixels(width: int, height: int) -> int:
    """The most pixels of a frame; 0 if the size of frames is not known."""
    return (width + _MARGIN) * (height + _MARGIN) if width * height else 0


def _decoding_bytes(context: Any) -> int:
    """What the frames of a video take while they are decoded, and one of them as an image."""
    bits: int = 8 * _MOST_PIXEL_BYTES
    if context.format is not None:
        bits = context.format.padded_bits_per_pixel
    pixels: int = context.width * context.height
    pictures: int = VIDEO_PICTURES + context.thread_count
    return pixels * (pictures * bits // 8 + PIXEL_BYTES)


def _upright(frame: Any) -> Image:
    """The frame in mode RGB, rotated as the file says."""
    from PIL.Image import Transpose

    image: Image = frame.to_image()
    turns = {90: Transpose.ROTATE_90, 180: Transpose.ROTATE_180, 270: Transpose.ROTATE_270}
    turn = turns.get(round(frame.rotation) % 360)
    return image if turn is None else image.transpose(turn)


def _unreadable(video: Media, reason: str) -> NotReadable:
    return unreadable(video.name, reason, kind="video")


def _too_large(video: Media, limits: VideoLimits) -> NotReadable:
    return _unreadable(video, f"its frames have more than {limits.pixels / 1e6:.0f} million pixels")
