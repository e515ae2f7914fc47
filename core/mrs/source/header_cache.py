"""Caches the byte ranges that were read from a repository on disk, for later plans.

A commit never changes, so that no range has to be requested twice. Each commit has a zip archive
in the platform's cache folder, without compression, so that no member is larger than the archive.
Checksums detect damage; the bytes are validated like those from the hub.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from contextlib import suppress
from pathlib import Path

FOLDER = "headers"
MAX_ARCHIVE_BYTES = 64 * 1024**2
MAX_FOLDER_BYTES = 512 * 1024**2


class HeaderCache:
    """The cached byte ranges of one commit's files.

    If the cache folder is unreadable or not writable, the cache stays empty without an error.
    """

    def __init__(self, endpoint: str, model_id: str, commit: str) -> None:
        from platformdirs import user_cache_path

        key = hashlib.sha256(f"{endpoint}\n{model_id}\n{commit}".encode()).hexdigest()
        self._path = user_cache_path("mrs") / FOLDER / f"{key}.zip"
        self._ranges = _read(self._path)
        self._was_stored = bool(self._ranges)
        self._is_changed = False

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes | None:
        """The stored bytes from `offset` on, None if there are fewer than `length`."""
        data = self._ranges.get(f"{offset}/{name}")
        return data if data is None or length in (None, len(data)) else None

    def put(self, name: str, data: bytes, offset: int = 0) -> None:
        self._ranges[f"{offset}/{name}"] = data
        self._is_changed = True

    def forget(self) -> bool:
        """Drop everything, also on disk; returns whether something was stored on disk."""
        self._ranges.clear()
        if self._was_stored:
            with suppress(OSError):
                self._path.unlink()
        was_stored, self._was_stored = self._was_stored, False
        return was_stored

    def save(self) -> None:
        """Write the ranges to disk if they have changed and are not too large."""
        if self._is_changed and sum(map(len, self._ranges.values())) < MAX_ARCHIVE_BYTES:
            with suppress(OSError):
                _write(self._path, self._ranges)
                _remove_oldest(self._path.parent)
        self._is_changed = False


def _read(path: Path) -> dict[str, bytes]:
    try:
        if path.stat().st_size > MAX_ARCHIVE_BYTES:
            return {}
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                return {}
            ranges = {member.filename: archive.read(member) for member in members}
        os.utime(path)  # the least recently read archives are removed first
    except Exception:  # noqa: BLE001 - a damaged archive raises anything
        return {}
    return ranges


def _write(path: Path, ranges: dict[str, bytes]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    try:
        with zipfile.ZipFile(scratch, "w") as archive:
            for name, data in ranges.items():
                archive.writestr(name, data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest files until the limit is met, leftovers of interrupted runs included."""
    files = [(file.stat(), file) for file in folder.iterdir() if file.is_file()]
    files.sort(key=lambda each: -each[0].st_mtime)
    total_bytes = 0
    for status, file in files:
        total_bytes += status.st_size
        if total_bytes > MAX_FOLDER_BYTES:
            file.unlink(missing_ok=True)
