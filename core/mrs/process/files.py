"""Files that are replaced as a whole, or that one process has at a time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, final

TEMPORARY_SUFFIX = ".tmp"
#: A longer name is cut in the temporary name, which must not be too long for the file system.
_NAME_CHARACTERS = 32
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


#: Permissions of a file for its owner alone, and of one that the process's umask limits.
PRIVATE, PUBLIC = 0o600, 0o666


def replace_file(
    path: Path, parts: Iterable[bytes | memoryview], permissions: int = PRIVATE
) -> None:
    """Writes a file with these permissions: readers see the old content or the new.

    The content reaches the disk before the file has its name, and the name before this returns.
    Until then the file is hidden beside `path`, with `TEMPORARY_SUFFIX`; it is removed if writing
    fails. Raises OSError.
    """
    name = f".{path.name[:_NAME_CHARACTERS]}.{os.urandom(6).hex()}{TEMPORARY_SUFFIX}"
    temporary = path.with_name(name)
    handle = os.open(temporary, _NEW, permissions)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Returns when the names in a folder are on the disk. Raises OSError.

    Some file systems and systems have no such call for folders: there, nothing is promised.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        os.close(handle)


def hold(file: IO[bytes], taken: Exception) -> None:
    """Let no other process hold an open file, until it is closed; raises `taken` if one does.

    On Windows nothing is promised.
    """
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise taken from error


def read_at_most(path: Path, most_bytes: int) -> bytes:
    """The content of a file that a user gives. Raises OSError, also for a larger file."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return content


@final
class Staging:
    """New files of a folder, which have no names in it until all are written; a context manager.

    They are in a hidden folder inside it, which is removed at the end. That of a process that was
    killed is removed by the next one with the same `purpose`. All methods raise OSError.
    """

    def __init__(self, folder: Path, purpose: str) -> None:
        self.folder = folder
        self._hidden = folder / f".{purpose[:_NAME_CHARACTERS]}{TEMPORARY_SUFFIX}"

    def path(self, name: str) -> Path:
        """Where to write the file of this name, which may have folders before a `/`."""
        path = self._hidden / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, names: Iterable[str]) -> None:
        """Give files their names in this order; all are on the disk when this returns.

        The content of each must be there already.
        """
        folders = {self.folder: None}
        for name in names:
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            self.path(name).replace(path)
            folders[path.parent] = None
        for folder in folders:
            sync_folder(folder)

    def __enter__(self) -> Staging:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._hidden.exists():
            shutil.rmtree(self._hidden)
        self._hidden.mkdir()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._hidden, ignore_errors=True)
