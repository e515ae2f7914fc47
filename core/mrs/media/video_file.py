"""Reads frames from the bytes of a video file with PyAV, within limits."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable, Unsupported
from mrs.media.image_source import unreadable
from mrs.media.open_image import decoding, take_room
from mrs.sizes.request_sizes import PIXEL_BYTES, VIDEO_PICTURES

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
#: Later frames may be so many pixels longer and wider than the file says: decoders round up, and
#: that of MPEG-4 counts small frames several times.
_MARGIN = 256
#: Of a pixel in the largest formats: 4 values of 16 bits.
_MOST_PIXEL_BYTES = 8


@dataclass(frozen=True)
class VideoLimits:
    """Limits for one video: bytes of its file, pixels of a frame, frames, bytes of those used."""

    file_bytes: int = 256 * 2**20
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
    source: str, content: bytes, limits: VideoLimits = DEFAULT_VIDEO_LIMITS
) -> VideoFacts:
    """What the file says of its video; nothing is decoded.

    Raises Unsupported without PyAV, and NotReadable with a line that names the file `source`.
    """
    with _opened(source, content, limits) as (container, stream):
        # Headers may lack the number of frames, or have a wrong one.
        frames = sum(1 for packet in container.demux(stream) if packet.size)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        width, height = stream.codec_context.width, stream.codec_context.height
    if not frames or width * height == 0:
        raise _unreadable(source, "it has no frames")
    if frames > limits.frames:
        raise _unreadable(source, f"it has more than {limits.frames:,} frames")
    if not _KNOWN_RATES[0] <= rate <= _KNOWN_RATES[1]:
        raise _unreadable(source, f"it has {rate:g} frames a second")
    return VideoFacts(frames, rate, width, height)


def read_frames(
    source: str,
    content: bytes,
    indices: Sequence[int],
    use: Callable[[Image], Image],
    limits: VideoLimits = DEFAULT_VIDEO_LIMITS,
) -> list[Image]:
    """What `use` makes of the frames at ascending `indices`, upright and in mode RGB.

    Frames that the end of a file lacks are the last one that it has. Raises as `read_facts` does.
    """
    found: list[Image] = []
    with decoding(), _opened(source, content, limits) as (container, stream):
        take_room(source, _decoding_bytes(stream.codec_context), "video")
        for index, frame in enumerate(container.decode(stream)):
            if index == indices[len(found)]:
                found.append(use(_upright(frame)))
                while len(found) < len(indices) and indices[len(found)] == index:
                    found.append(found[-1])
            if len(found) == len(indices):
                return found
    if not found:
        raise _unreadable(source, "none of its frames can be decoded")
    return found + found[-1:] * (len(indices) - len(found))


@contextmanager
def _opened(source: str, content: bytes, limits: VideoLimits) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; its errors become NotReadable."""
    try:
        import av
    except ImportError as error:
        raise Unsupported(
            "videos need the package av", hint="pip install 'mrs[video]', or pip install av"
        ) from error
    try:
        # Before version 19, PyAV decoded a file's metadata, which need not be UTF-8, and failed.
        more: Any = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
        options = {"format_whitelist": _CONTAINERS, "codec_whitelist": _DECODERS}
        with av.open(io.BytesIO(content), options=options, **more) as container:
            if not container.streams.video:
                raise _unreadable(source, "it has no video")
            stream = container.streams.video[0]
            context = stream.codec_context
            if context is None or context.codec.canonical_name not in CODECS:
                raise _unreadable(source, f"it is in none of the formats {', '.join(CODECS)}")
            if context.width * context.height > limits.pixels:
                raise _too_large(source, limits)
            most = (context.width + _MARGIN) * (context.height + _MARGIN)
            context.options = {"max_pixels": str(most)}  # of later frames, too
            context.thread_count = min(os.cpu_count() or 1, _MOST_THREADS)
            yield container, stream
    except NotReadable:
        raise
    except MemoryError as error:
        raise _unreadable(source, "its frames do not fit into memory") from error
    except (av.FFmpegError, ValueError, RuntimeError, OverflowError) as error:
        raise _unreadable(source, "it is damaged, or of an unknown format") from error


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


def _unreadable(source: str, reason: str) -> NotReadable:
    return unreadable(source, reason, kind="video")


def _too_large(source: str, limits: VideoLimits) -> NotReadable:
    return _unreadable(
        source, f"its frames have more than {limits.pixels / 1e6:.0f} million pixels"
    )
