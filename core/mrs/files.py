"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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

    The content reaches the disk before the file has its name. Until then the file is hidden beside
    `path`, with `TEMPORARY_SUFFIX`; it is removed if writing fails. Raises OSError.
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
