"""Reads an image or a video once, so that later changes of its file do not matter."""

from __future__ import annotations

from mrs.media.image_source import data_uri, is_data, read_source, unreadable
from mrs.media.open_image import DEFAULT_LIMITS, ImageLimits, embed_image
from mrs.media.video_file import DEFAULT_VIDEO_LIMITS, read_facts
from mrs.media.video_names import VIDEO_TYPES, names_video, video_type


def embed_media(source: str, limits: ImageLimits = DEFAULT_LIMITS) -> str:
    """A data: URI with the present content of an image or a video, and with `source` as its name.

    Raises NotReadable, and Unsupported for a video without the package that reads it.
    """
    if is_data(source) and not names_video(source):
        return embed_image(source, limits)[0]
    content = read_video(source, limits) if names_video(source) else _read(source, limits)
    kind = video_type(content)
    if kind is None:
        return embed_image(source, limits, content)[0]
    read_facts(source, content)
    return source if is_data(source) else data_uri(content, kind, source)


def embed_video(source: str) -> str:
    """As `embed_media`, for a file that has to be a video whatever its name is."""
    content = read_video(source)
    read_facts(source, content)
    return source if is_data(source) else data_uri(content, video_type(content) or "", source)


def read_video(source: str, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """The bytes of a video's file. Raises NotReadable."""
    content = _read(source, limits, DEFAULT_VIDEO_LIMITS.file_bytes)
    if video_type(content) is None:
        *names, last = VIDEO_TYPES
        raise unreadable(source, f"it is not a {', '.join(names)} or {last} file", kind="video")
    return content


def _read(source: str, limits: ImageLimits, most_bytes: int | None = None) -> bytes:
    return read_source(
        source, most_bytes or limits.file_bytes, limits.download_s, only_public=limits.only_public
    )
