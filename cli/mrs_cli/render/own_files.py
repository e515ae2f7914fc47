"""Files that a person names to be written: only those that this program wrote are replaced."""

from __future__ import annotations

from pathlib import Path

from mrs.errors import UsageError
from mrs.process.files import replace_file


def replace_own_file(path: Path, text: str, end: str, what: str, where: str = "") -> None:
    """Writes a text that ends with `end`, which tells later that `path` is `what` is written here.

    Raises UsageError, with the flag `where` if there is one, for another file of that name and for
    a path that cannot be written.
    """
    try:
        if path.exists() and not _ends_with(path, end.encode()):
            raise UsageError(
                f"{path} exists and is not {what}", where=where, hint="give another name"
            )
        replace_file(path.resolve(), [text.encode("utf-8", "replace")])
    except OSError as error:
        reason = error.strerror or ""
        raise UsageError(
            f"{path} cannot be written", where=": ".join(filter(None, (where, reason)))
        ) from error


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(end)))
        return file.read() == end
