"""The answers of a batch: two files that grow by whole lines, so that a batch can go on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from mrs.errors import NotReadable, UsageError
from mrs.process.files import PUBLIC, hold
from mrs.server.batches.lines import key_of

#: Answers reach the disk at least this often; if the machine fails, later ones are made again.
_SYNC_S = 1.0


class BatchResponse(msgspec.Struct, frozen=True):
    """What the same request over HTTP would have got."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct, frozen=True):
    """Why a line got no response."""

    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True):
    """A line of an output or error file."""

    id: str
    custom_id: str
    response: BatchResponse | None = None
    error: BatchError | None = None

    @property
    def is_success(self) -> bool:
        return self.response is not None and self.response.status_code == 200


class _Answered(msgspec.Struct, frozen=True):
    custom_id: str


class Results:
    """Open files of answers; `done` are the keys of lines that had one before.

    Successes go to the file at `output`, all others to that at `errors`, which is made with the
    first of them.
    """

    def __init__(self, output: Path, errors: Path, output_file: IO[bytes]) -> None:
        self._files: dict[Path, IO[bytes]] = {output: output_file}
        self.output, self.errors = output, errors
        self.done: set[bytes] = set()
        self.completed = self.failed = self._written_bytes = 0
        self._synced_s = time.monotonic()

    def add(self, result: BatchResult) -> None:
        """Write an answer. Raises OSError."""
        file = self._file(self.output if result.is_success else self.errors)
        line = msgspec.json.encode(result) + b"\n"
        self._written_bytes += len(line)
        file.write(line)
        file.flush()
        if result.is_success:
            self.completed += 1
        else:
            self.failed += 1
        if time.monotonic() - self._synced_s >= _SYNC_S:
            self.sync()

    def take_written_bytes(self) -> int:
        """The bytes of answers since the last call."""
        written, self._written_bytes = self._written_bytes, 0
        return written

    def sync(self) -> None:
        for file in self._files.values():
            os.fsync(file)
        self._synced_s = time.monotonic()

    def read(self) -> None:
        """Find what was answered before, and cut off the beginning of a line that was not written
        to its end. Raises UsageError for other content."""
        self.completed = self._read(self.output)
        self.failed = self._read(self.errors) if self.errors.exists() else 0

    def _read(self, path: Path) -> int:
        file, count, end = self._file(path), 0, 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                answered = msgspec.json.decode(line, type=_Answered)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"{path}, line {number} is no answer of a batch", hint="name another file"
                ) from error
            self.done.add(key_of(answered.custom_id))
            count += 1
            end += len(line)
        file.seek(end)
        file.truncate()
        return count

    def _file(self, path: Path) -> IO[bytes]:
        if path not in self._files:
            self._files[path] = _opened(path)
        return self._files[path]

    def close(self) -> None:
        with suppress(OSError):
            self.sync()
        for file in self._files.values():
            with suppress(OSError):  # what is not written yet was told already
                file.close()


@contextmanager
def results_in(output: Path, errors: Path) -> Iterator[Results]:
    """The answers in these files, for this process alone. Raises UsageError and NotReadable."""
    if output == errors:
        raise UsageError("answers and errors go to one file", hint="name two files")
    try:
        results = Results(output, errors, _opened(output))
    except OSError as error:
        raise NotReadable(
            f"cannot write {error.filename or output}", where=error.strerror or ""
        ) from error
    try:
        results.read()
        yield results
    finally:
        results.close()


def _opened(path: Path) -> IO[bytes]:
    """A file to go on with. Raises UsageError if another process has it, and OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), PUBLIC)
    file = os.fdopen(handle, "r+b")
    try:
        hold(file, UsageError(f"another process writes {path}", hint="wait until it has ended"))
    except UsageError:
        file.close()
        raise
    return file
