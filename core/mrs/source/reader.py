"""Random access to the bytes of local and remote files."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal, Protocol

from mrs.errors import NotReadable


def expanded(name: str) -> Path:
    """The path with `~` expanded. Raises NotReadable for the home of an unknown user."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise NotReadable("no such folder or file", where=name, hint=str(error)) from error


def kind_of(path: Path) -> Literal["file", "folder", "other"] | None:
    """The kind of a path, None if it does not exist. Raises NotReadable for an invalid path."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # a zero byte, or a lone surrogate
        raise NotReadable("the path is invalid", where=str(path)) from error
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


class ByteReader(Protocol):
    """A file of known size whose bytes can be read in any order.

    `read` returns exactly `length` bytes or raises NotReadable; callers stay within the file.
    """

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes: ...


class LocalFile:
    """A file on disk that is opened for each read, so that nothing has to be closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size_bytes = path.stat().st_size
        except OSError as error:
            raise unreadable(path, error) from error

    def read(self, offset: int, length: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(length)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(data) != length:
            raise NotReadable(
                f"{self.path.name} ends at byte {offset + len(data)} while it is being read",
                where=str(self.path),
                hint="another program may have changed it: try again",
            )
        return data


def unreadable(path: Path, error: OSError) -> NotReadable:
    """The error for a file that the system refuses to open or read."""
    where = "" if str(path) == path.name else str(path)
    return NotReadable(f"cannot read {path.name}", where=where, hint=error.strerror or "")
