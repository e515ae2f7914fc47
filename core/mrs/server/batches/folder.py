"""The folder of a server's batches: files, and what is known of them and of each batch."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import IO, Any, Generic, TypeVar
from uuid import uuid4

import msgspec

from mrs.errors import NotReadable, UsageError
from mrs.process.files import hold, replace_file
from mrs.process.turns import Shares
from mrs.server.http.errors import ApiError
from mrs.server.schemas.batch import ENDED, BatchObject, BatchRequest, FileObject
from mrs.units import human_bytes

#: How long a file, and a batch that has ended, is kept.
KEPT_S = 30 * 86400
#: How long a batch may take.
WINDOW_S = 86400
#: Files and batches together.
MOST_ENTRIES = 1000
Kind = TypeVar("Kind", bound=FileObject | BatchObject)


class _Entry(msgspec.Struct, Generic[Kind]):
    """What a metadata file has; `owner` differs between API keys."""

    owner: str
    what: Kind


class BatchFolder:
    """Keeps at most `most_bytes` and `MOST_ENTRIES`, of which each owner leaves some to others.

    One process has the folder; any thread may call all methods, which wait for the disk. Nobody
    gets what belongs to another owner. Raises UsageError and NotReadable.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry[Any]] = {}
        self._bytes, self._counts = Shares(), Shares()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _held(folder)
            self._read()
        except OSError as error:
            raise NotReadable(
                f"--batch-dir {folder} cannot be used", where=error.strerror or ""
            ) from error

    def close(self) -> None:
        self._held.close()

    def path(self, file_id: str) -> Path:
        """Where a file is that the server has named."""
        return self._folder / f"{file_id}.jsonl"

    def add_file(self, owner: str, content: bytes) -> FileObject:
        """Raises ApiError if there is no room."""
        with self._lock:
            self.expire()
            self._require_entry(owner)
            self.grow(owner, len(content))
            made = _file(f"file-{uuid4().hex}", len(content), "batch")
            try:
                replace_file(self.path(made.id), [content])
                self._put(owner, made)
            except OSError as error:
                self._bytes.add((owner,), -len(content))
                raise _not_written(error) from error
            return made

    def keep_result(self, owner: str, file_id: str) -> str | None:
        """Name the answers of a batch that has ended as a file; None if there are none."""
        with self._lock:
            path = self.path(file_id)
            if not path.exists() or not (size := path.stat().st_size):
                path.unlink(missing_ok=True)
                return None
            self._put(owner, _file(file_id, size, "batch_output"))
            return file_id

    def grow(self, owner: str, more_bytes: int) -> None:
        """Make room for more bytes of files. Raises ApiError."""
        with self._lock:
            if not self._bytes.have_room((owner,), self._most_bytes, more_bytes):
                most = human_bytes(self._most_bytes)
                message = f"of the {most} for files, too little is free: delete some"
                raise ApiError(413, message, "file", "storage_full")
            self._bytes.add((owner,), more_bytes)

    def add_batch(self, owner: str, request: BatchRequest) -> BatchObject:
        """Raises ApiError without the file, and if there is no room."""
        with self._lock:
            self.expire()
            self._require_entry(owner)
            file = self.file(owner, request.input_file_id, "input_file_id")
            if file.purpose != "batch":
                raise ApiError(
                    400, f"{file.id} has answers: name a file of requests", "input_file_id"
                )
            now = int(time.time())
            made = BatchObject(
                id=f"batch_{uuid4().hex}",
                endpoint=request.endpoint,
                input_file_id=file.id,
                created_at=now,
                expires_at=now + WINDOW_S,
                metadata=request.metadata,
            )
            self._put(owner, made)
            return made

    def file(self, owner: str, file_id: str, param: str = "file_id") -> FileObject:
        return self._of(FileObject, owner, file_id, "file", param)

    def batch(self, owner: str, batch_id: str) -> BatchObject:
        return self._of(BatchObject, owner, batch_id, "batch", "batch_id")

    def files(self, owner: str) -> list[FileObject]:
        """The newest first."""
        return self._all(FileObject, owner)

    def batches(self, owner: str) -> list[BatchObject]:
        """The newest first."""
        return self._all(BatchObject, owner)

    def waiting(self) -> list[tuple[str, BatchObject]]:
        """The batches that have not ended and their owners, the oldest first."""
        with self._lock:
            found = [
                (each.owner, each.what)
                for each in self._entries.values()
                if isinstance(each.what, BatchObject) and each.what.status not in ENDED
            ]
        return sorted(found, key=lambda each: each[1].created_at)

    def save(self, batch: BatchObject) -> None:
        """Write what has changed of a batch."""
        with self._lock:
            self._put(self._entries[batch.id].owner, batch)

    def delete_file(self, owner: str, file_id: str) -> None:
        """Raises ApiError for a file that a batch still reads."""
        with self._lock:
            self.file(owner, file_id)
            if file_id in self._read_now():
                message = f"a batch reads {file_id}: cancel it first"
                raise ApiError(409, message, "file_id", "file_in_use")
            self._drop(file_id)

    def expire(self) -> None:
        """Delete what is too old."""
        with self._lock:
            now, kept = time.time(), self._read_now()
            for name, entry in list(self._entries.items()):
                what = entry.what
                if isinstance(what, FileObject):
                    is_over = what.expires_at <= now and name not in kept
                else:
                    is_over = what.status in ENDED and what.expires_at + KEPT_S <= now
                if is_over:
                    self._drop(name)

    def _read_now(self) -> set[str]:
        """The files of batches that have not ended."""
        return {batch.input_file_id for _, batch in self.waiting()}

    def _of(self, kind: type[Kind], owner: str, name: str, word: str, param: str) -> Kind:
        entry = self._entries.get(name)
        if entry is None or entry.owner != owner or not isinstance(entry.what, kind):
            raise ApiError(404, f"there is no {word} {name[:100]!r}", param, f"{word}_not_found")
        return entry.what

    def _all(self, kind: type[Kind], owner: str) -> list[Kind]:
        with self._lock:
            entries = list(self._entries.values())
        found = [e.what for e in entries if e.owner == owner and isinstance(e.what, kind)]
        return sorted(found, key=lambda each: -each.created_at)

    def _require_entry(self, owner: str) -> None:
        if not self._counts.have_room((owner,), MOST_ENTRIES, 1):
            raise ApiError(
                429, "the server keeps too many files and batches: delete some", code="too_many"
            )

    def _put(self, owner: str, what: FileObject | BatchObject) -> None:
        entry = _Entry(owner, what)
        replace_file(self._folder / f"{what.id}.json", [msgspec.json.encode(entry)])
        if what.id not in self._entries:
            self._counts.add((owner,), 1)
        self._entries[what.id] = entry

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name)
        self._counts.add((entry.owner,), -1)
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        if isinstance(entry.what, FileObject):
            self.path(name).unlink(missing_ok=True)
            self._bytes.add((entry.owner,), -entry.what.bytes)

    def _read(self) -> None:
        """Take over what an earlier process has left, and delete what nothing is known of."""
        for path in self._folder.glob("*.json"):
            kind = BatchObject if path.name.startswith("batch_") else FileObject
            try:
                entry = msgspec.json.decode(path.read_bytes(), type=_Entry[kind])  # type: ignore[valid-type]
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"{path} does not describe a batch or a file", hint="delete it, or name another"
                ) from error
            self._entries[path.stem] = entry
            self._counts.add((entry.owner,), 1)
        results = {each: owner for owner, batch in self.waiting() for each in result_ids(batch.id)}
        for path in self._folder.glob("*.jsonl"):
            known = self._entries.get(path.stem)
            owner = results.get(path.stem) if known is None else known.owner
            if owner is None:
                path.unlink()
            else:
                self._bytes.add((owner,), path.stat().st_size)


def result_ids(batch_id: str) -> tuple[str, str]:
    """The files of a batch's answers and errors."""
    number = batch_id.removeprefix("batch_")
    return f"file-{number}-output", f"file-{number}-errors"


def _file(file_id: str, size: int, purpose: str) -> FileObject:
    now = int(time.time())
    fields = {"id": file_id, "bytes": size, "created_at": now, "expires_at": now + KEPT_S}
    return msgspec.convert(
        {**fields, "filename": f"{file_id}.jsonl", "purpose": purpose}, FileObject
    )


def _not_written(error: OSError) -> ApiError:
    reason = error.strerror or "the disk fails"
    return ApiError(500, f"the file cannot be written: {reason}", code="storage_failed")


def _held(folder: Path) -> IO[bytes]:
    """A file that one process has at a time. Raises UsageError and OSError."""
    file = (folder / "lock").open("wb")
    hint = "give each a folder of its own"
    try:
        hold(file, UsageError(f"another server has --batch-dir {folder}", hint=hint))
    except UsageError:
        file.close()
        raise
    os.utime(folder / "lock")
    return file
