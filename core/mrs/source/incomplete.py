"""Signs of a download that was not finished: parts of files, empty and cut files, pointers."""

from __future__ import annotations

from pathlib import Path

from mrs.errors import NotReadable
from mrs.source.folder import Folder

#: The hint for a file that is shorter than it says.
AGAIN = "the download is not complete: run it again"
#: How programs call files that they have not finished.
_SUFFIXES = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".download", ".!ut")
#: Where the hub's client has them: beside a folder that it filled, and in its cache.
_CLIENT_FOLDERS = (".cache/huggingface/download", "../../blobs")


def unfinished_files(folder: Folder) -> list[str]:
    """The names of files in and around a folder that a download has not finished."""
    names = [name for name in folder.names() if name.endswith(_SUFFIXES)]
    if folder.path is not None:
        for client in _CLIENT_FOLDERS:
            # Links are followed by the system: a snapshot's blobs are beside its own folder.
            names += _files_in(folder.path / client)
    return names


def _files_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.suffix == _SUFFIXES[0])
    except OSError:
        return []


def check_start(start: bytes, size_bytes: int, file: str) -> None:
    """Raise NotReadable if a file of weights is empty, or begins as what stands for the file."""
    if not size_bytes:
        raise NotReadable("an empty file", where=file, hint=AGAIN)
    if start.startswith(b"version "):
        raise NotReadable("a Git LFS pointer instead of the file", where=file, hint="git lfs pull")
    if start[:1] == b"<" and start[1:5].lower() in (b"!doc", b"html", b"?xml", b"head"):
        raise NotReadable("a web page instead of the file", where=file, hint="download it again")
    if start and not any(start):
        raise NotReadable("the file begins with zeros", where=file, hint=AGAIN)
