"""Which names and which bytes are those of a video file."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

#: File name suffixes, and their MIME types.
VIDEO_TYPES = {
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "mov": "video/quicktime",
    "mkv": "video/x-matroska",
    "webm": "video/webm",
    "avi": "video/x-msvideo",
}
#: Brands of still images in the container of mp4.
_STILLS = (b"avif", b"avis", b"heic", b"heix", b"hevc", b"mif1", b"msf1")
_WEB = re.compile(r"https?://", re.IGNORECASE)


def names_video(source: str) -> bool:
    """Whether a path or an address has a suffix of videos, or a data: URI the type of one."""
    if source[:5].lower() == "data:":
        return source[5:11].lower() == "video/"
    return suffix_of(source) in VIDEO_TYPES


def suffix_of(source: str) -> str:
    """What follows the last dot of a path or of the path in an address, in lower case."""
    if _WEB.match(source):
        try:
            source = urlsplit(source).path
        except ValueError:
            return ""
    return source.rpartition(".")[2].lower()


def video_type(content: bytes) -> str | None:
    """The MIME type of a video file by its first bytes; None for any other file."""
    if content[4:8] == b"ftyp" and content[8:12] not in _STILLS:
        return VIDEO_TYPES["mov" if content[8:12] == b"qt  " else "mp4"]
    if content[4:8] in (b"moov", b"mdat", b"wide"):
        return VIDEO_TYPES["mov"]
    if content.startswith(b"\x1a\x45\xdf\xa3"):
        return VIDEO_TYPES["webm" if b"webm" in content[:64] else "mkv"]
    if content[:4] == b"RIFF" and content[8:12] == b"AVI ":
        return VIDEO_TYPES["avi"]
    return None
