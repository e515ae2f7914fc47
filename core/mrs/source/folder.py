"""The files of a model: in a local directory, or in a repository on the hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from mrs.errors import NotReadable
from mrs.process.encodings import other_encoding
from mrs.source.reader import ByteReader, LocalFile, kind_of

#: Called with the bytes that are present and the bytes of all wanted files.
Progress = Callable[[int, int], None]
#: Configurations, indexes and tokenizers of published models are far smaller.
MAX_TEXT_BYTES = 256 * 1024**2
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Folder(Protocol):
    """The files of one model. Names use `/` and include files in direct subfolders."""

    @property
    def label(self) -> str:
        """The name of this folder in errors."""

    @property
    def path(self) -> Path | None:
        """The local directory; None if the files are on the hub."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user, one line each."""

    def names(self) -> tuple[str, ...]:
        """Every file, sorted."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> ByteReader: ...

    def open_weights(self, name: str) -> ByteReader:
        """A file whose bytes are not kept once read."""

    def keep_headers(self) -> None:
        """Cache on disk what was read from the hub."""

    def forget_headers(self) -> bool:
        """Drop what `keep_headers` cached; returns whether there was anything."""

    def cached(self, wanted: tuple[str, ...]) -> Folder:
        """The local copy if it has all wanted files, otherwise this folder."""


class LocalFolder:
    """A directory on this machine."""

    def __init__(self, path: Path, label: str = "", notes: tuple[str, ...] = ()) -> None:
        self.path = path
        self.label = label or str(path)
        self.notes = notes

    def names(self) -> tuple[str, ...]:
        listed: list[str] = []
        try:
            for entry in os.scandir(self.path):
                if entry.is_file():
                    listed.append(entry.name)
                elif entry.is_dir() and not entry.name.startswith("."):
                    listed += (f"{entry.name}/{name}" for name in _files_in(entry.path))
        except OSError as error:
            raise NotReadable(
                "cannot list the folder", where=str(self.path), hint=error.strerror or ""
            ) from error
        return tuple(sorted(listed))

    def has(self, name: str) -> bool:
        return kind_of(self.path / name) == "file"

    def open(self, name: str) -> ByteReader:
        return LocalFile(self.path / name)

    open_weights = open

    def keep_headers(self) -> None:
        pass

    def forget_headers(self) -> bool:
        return False

    def cached(self, wanted: tuple[str, ...]) -> Folder:
        return self


def read_text(folder: Folder, name: str) -> str | None:
    """The file's text, or None if the folder has no such file."""
    data = read_bytes(folder, name)
    return None if data is None else decode_text(data, name, folder.label)


def read_bytes(folder: Folder, name: str) -> bytes | None:
    """The bytes of a file that is not of weights, or None if the folder has no such file."""
    if not folder.has(name):
        return None
    reader = folder.open(name)
    if reader.size_bytes > MAX_TEXT_BYTES:
        raise NotReadable(f"{name} is too large to be a text file", where=folder.label)
    return reader.read(0, reader.size_bytes) if reader.size_bytes else b""


def decode_text(data: bytes, name: str, where: str) -> str:
    if encoding := other_encoding(data):
        raise NotReadable(f"{name} is {encoding}, not UTF-8", where=where, hint="save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotReadable(f"{name} is not UTF-8 text", where=where) from error


def parse_json(text: str) -> Any:
    """The JSON value in `text`. Raises ValueError for invalid JSON, for too deep nesting, and for
    lone surrogates, which no encoding can represent."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("it contains a lone surrogate") from error
    return value


def read_json(folder: Folder, name: str) -> Mapping[str, Any] | None:
    """The file's JSON object, or None if the folder has no such file."""
    text = read_text(folder, name)
    if text is None:
        return None
    try:
        value = parse_json(text)
    except ValueError as error:
        raise NotReadable(
            f"{name} is not valid JSON", where=folder.label, hint=str(error)
        ) from error
    if not isinstance(value, dict):
        raise NotReadable(f"{name} is not a JSON object", where=folder.label)
    return value


def _files_in(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_file()]
    except OSError:
        return []  # an unreadable subfolder does not hide the other files
