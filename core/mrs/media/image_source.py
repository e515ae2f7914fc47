"""The bytes and the name of a media file at a path, at an address or in a data: URI."""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import stat
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from mrs.errors import NotReadable, shortened
from mrs.media.audio_names import names_audio
from mrs.media.video_names import names_video
from mrs.request import MediaKind

_NAMED_CHARACTERS = 80
_DATA = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_SPACES = " \t\r\n"
_PIECE_CHARACTERS = 2**16


def image_name(name: str) -> str:
    """A path, an address or a data: URI for messages: on one line, cut in the middle if long."""
    return " ".join(shortened(name_of(name), _NAMED_CHARACTERS).split())


def name_of(source: str) -> str:
    """A path or an address; of a data: URI the name in it, or else its beginning and its end."""
    if not is_data(source):
        return source
    return _data_fields(source).get("name") or shortened(source, _NAMED_CHARACTERS)


def is_data(source: str) -> bool:
    return source[:5].lower() == "data:"


def data_uri(content: bytes, mime_type: str, name: str) -> str:
    """A data: URI with the content of a file, and with its name if it has one."""
    encoded = base64.b64encode(content).decode()
    named = "" if is_data(name) else f";name={quote(name, safe='')}"
    return f"data:{mime_type}{named};base64,{encoded}"


def unreadable(
    source: str, reason: str, hint: str = "", kind: MediaKind | None = None
) -> NotReadable:
    """The error for a file; without a `kind`, its name says whether it is an image or what else."""
    kind = kind or named_kind(source) or "image"
    noun = singular(kind)
    return NotReadable(f"{noun} {image_name(source)} cannot be read", where=reason, hint=hint)


def named_kind(source: str) -> MediaKind | None:
    """The kind of file that a path, an address or a data: URI names; None if not one of the two."""
    if names_video(source):
        return "video"
    return "audio" if names_audio(source) else None


def singular(kind: MediaKind) -> str:
    """What a file of this kind is called."""
    return "audio file" if kind == "audio" else kind


def read_source(
    source: str, most_bytes: int, download_s: float, *, only_public: bool = False
) -> bytes:
    """The bytes of a path, a file://, http:// or https:// address, or a data: URI in base64.

    Raises NotReadable if it is missing, is not a file, has more than `most_bytes`, or takes longer
    than `download_s` seconds to download. With `only_public` it is not downloaded from this machine
    or a local network.
    """
    scheme = source.partition(":")[0].lower()
    if scheme == "data":
        content = _decoded(source, most_bytes)
    elif scheme in ("http", "https") and "://" in source:
        content = _downloaded(source, most_bytes, download_s, only_public)
    else:
        content = _read(source, _path(source), most_bytes)
    if len(content) > most_bytes:
        raise _too_large(source, most_bytes)
    return content


def _path(source: str) -> Path:
    try:
        if not source.lower().startswith("file:"):
            return Path(source).expanduser()
        parts = urlsplit(source)
        if parts.netloc.lower() not in ("", "localhost"):
            raise unreadable(source, f"{parts.netloc} is another machine")
        from urllib.request import url2pathname

        return Path(url2pathname(parts.path))
    except (ValueError, RuntimeError) as error:  # an invalid address, or ~user without such a user
        raise unreadable(source, str(error)) from error


def _read(source: str, path: Path, most_bytes: int) -> bytes:
    """The file's bytes, at most one more than allowed; never blocks on a pipe or a device."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if path.is_dir():
            raise unreadable(source, "it is a folder")
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise unreadable(source, "it is not a file")
            if status.st_size > most_bytes:
                raise _too_large(source, most_bytes)
            return file.read(most_bytes + 1)
    except OSError as error:
        raise unreadable(source, error.strerror or str(error)) from error
    except ValueError as error:  # a zero byte, or a lone surrogate
        raise unreadable(source, "the path is invalid") from error


def _downloaded(source: str, most_bytes: int, download_s: float, only_public: bool) -> bytes:
    from mrs.source.http_client import HttpClient

    try:
        address = quote(source, safe="%/:=&?~#+!$,;'@()*[]")
        client = HttpClient(None, address, only_public=only_public)
        reply = client.get(address, most_bytes=most_bytes + 1, within_s=download_s)
    except NotReadable as error:
        raise unreadable(
            source, f"{error.what}: {error.where}" if error.where else error.what
        ) from error
    except ValueError as error:
        raise unreadable(source, "the address is invalid") from error
    if reply.status != 200:
        raise unreadable(source, f"the server answers {reply.status}")
    return reply.body


def _decoded(source: str, most_bytes: int) -> bytes:
    start = _DATA.match(source)
    if start is None or not start[2].lower().endswith(";base64"):
        raise unreadable(source, "it is not a data: URI in base64")
    encoded_characters = len(source) - start.end()
    if encoded_characters // 4 * 3 > 2 * most_bytes + 1024:  # half of it may be white space
        raise _too_large(source, most_bytes)
    try:
        return _from_base64(unquote(source[start.end() :]).rstrip(_SPACES))
    except (binascii.Error, ValueError) as error:
        raise unreadable(source, "its base64 is damaged") from error


def _from_base64(encoded: str) -> bytes:
    """What a text encodes, in which white space counts for nothing; it does not end with any.

    It is decoded in pieces, so that other threads do not wait for the whole. Raises ValueError.
    """
    content, left = io.BytesIO(), ""
    for start in range(0, len(encoded), _PIECE_CHARACTERS):
        piece = left + encoded[start : start + _PIECE_CHARACTERS]
        for space in _SPACES:
            piece = piece.replace(space, "")
        is_last = start + _PIECE_CHARACTERS >= len(encoded)
        whole = len(piece) if is_last else len(piece) // 4 * 4
        if not is_last and "=" in piece[:whole]:
            raise ValueError("more follows its end")
        content.write(binascii.a2b_base64(piece[:whole], strict_mode=True))
        left = piece[whole:]
    return content.getvalue()


def _data_fields(source: str) -> dict[str, str]:
    start = _DATA.match(source[:4096])
    fields = (start[2] if start else "").split(";")
    return {key.lower(): unquote(value) for key, _, value in (f.partition("=") for f in fields)}


def _too_large(source: str, most_bytes: int) -> NotReadable:
    return unreadable(source, f"it has more than {most_bytes / 2**20:g} MiB")
