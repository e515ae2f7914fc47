"""Reads a media file once, where it comes into the program; nothing is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.media.audio_names import AUDIO_TYPES, audio_type, names_audio
from mrs.media.image_source import data_uri, is_data, name_of, read_source, unreadable
from mrs.media.video_names import VIDEO_TYPES, names_video, video_type
from mrs.request import Media, MediaKind

#: The first bytes of image files, and their MIME types.
_IMAGE_TYPES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8", "image/jpeg"),
    (b"BM", "image/bmp"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


@dataclass(frozen=True)
class ReadLimits:
    """Limits for one file: bytes of each kind of file, seconds for the whole download.

    With `only_public` it is not downloaded from this machine or a local network.
    """

    image_bytes: int = 64 * 2**20
    video_bytes: int = 256 * 2**20
    audio_bytes: int = 64 * 2**20
    download_s: float = 60.0
    only_public: bool = False


DEFAULT_READ_LIMITS = ReadLimits()


def read_media(source: str, limits: ReadLimits = DEFAULT_READ_LIMITS) -> Media:
    """The file at a path, at a file://, http:// or https:// address, or in a data: URI.

    One with the suffix of a video or of an audio file has to be one. Raises NotReadable, with a
    line that names it.
    """
    if names_video(source):
        return read_video(source, limits)
    if names_audio(source):
        return read_audio(source, limits)
    content = _read(source, limits.image_bytes, limits)
    kind: MediaKind = "image"
    if not is_data(source) and audio_type(content) is not None:
        kind = "audio"
    elif not is_data(source) and video_type(content) is not None:
        kind = "video"
    return Media.of(name_of(source), content, kind)


def read_video(source: str, limits: ReadLimits = DEFAULT_READ_LIMITS) -> Media:
    """As `read_media`, for a file that has to be a video whatever its name is."""
    content = _read(source, limits.video_bytes, limits)
    if video_type(content) is None:
        *names, last = VIDEO_TYPES
        raise unreadable(source, f"it is not a {', '.join(names)} or {last} file", kind="video")
    return Media.of(name_of(source), content, "video")


def read_audio(source: str, limits: ReadLimits = DEFAULT_READ_LIMITS) -> Media:
    """As `read_media`, for a file that has to be one with sound, whatever its name is.

    It may be a video, whose sound is meant.
    """
    content = _read(source, limits.audio_bytes, limits)
    if audio_type(content) is None and video_type(content) is None:
        *names, last = dict.fromkeys(AUDIO_TYPES)
        raise unreadable(source, f"it is not a {', '.join(names)} or {last} file", kind="audio")
    return Media.of(name_of(source), content, "audio")


def to_data_uri(media: Media) -> str:
    """What `read_media` makes the same value of."""
    types = (each for start, each in _IMAGE_TYPES if media.content.startswith(start))
    of_image = next(types, "application/octet-stream")
    mime_type = of_image
    if media.kind != "image":
        types_of = (audio_type, video_type) if media.kind == "audio" else (video_type,)
        found = filter(None, (type_of(media.content) for type_of in types_of))
        mime_type = next(found, "").replace("video/", f"{media.kind}/")
    return data_uri(media.content, mime_type, media.name)


def _read(source: str, most_bytes: int, limits: ReadLimits) -> bytes:
    return read_source(source, most_bytes, limits.download_s, only_public=limits.only_public)
