"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
#: A longer name is cut in the temporary name, which must not be too long for the file system.
_NAME_CHARACTERS = 32


def replace_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes a file that only its owner may read: readers see the old content or the new.

    The content reaches the disk before the file has its name. Until then the file is hidden beside
    `path`, with `TEMPORARY_SUFFIX`; it is removed if writing fails. Raises OSError.
    """
    import tempfile

    prefix = f".{path.name[:_NAME_CHARACTERS]}."
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=TEMPORARY_SUFFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
