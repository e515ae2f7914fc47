"""Reads the weights of a model, on this machine or on the hub: the bytes of its tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO
from types import TracebackType
from typing import TYPE_CHECKING, final

from mrs.errors import NotReadable
from mrs.source.checkpoint import Checkpoint, TensorInfo
from mrs.source.reader import ByteReader, unreadable

if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray


@final
class Weights:
    """The files of a checkpoint, each opened at its first read; a context manager.

    A file that is not on this machine is read by ranges of bytes from the hub.

    Reading copies into the caller's memory. Mapping the file would avoid the copy, but its pages
    would count as memory of this process, and page faults cost more than the copy.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._files: dict[str, FileIO] = {}
        self._readers: dict[str, ByteReader] = {}
        self._sizes = {file.name: file.size_bytes for file in checkpoint.files}

    def read_into(self, target: memoryview, info: TensorInfo, start_bytes: int = 0) -> None:
        """Fill `target` (bytes, writable) with the tensor's bytes from `start_bytes` on.

        Raises ValueError if the tensor is shorter, NotReadable if the file is unreadable or its
        size has changed.
        """
        if start_bytes < 0 or start_bytes + len(target) > info.size_bytes:
            raise ValueError(f"{info.name} has no bytes {start_bytes} to +{len(target)}")
        if self.checkpoint.folder.path is None:
            target[:] = self._remote(info.file).read(info.offset_bytes + start_bytes, len(target))
            return
        file = self._opened(info.file)
        path = self.checkpoint.local_path(info.file)
        try:
            size_bytes = os.fstat(file.fileno()).st_size
            file.seek(info.offset_bytes + start_bytes)
            done = 0
            while done < len(target):
                count = file.readinto(target[done:])
                if not count:
                    break
                done += count
        except OSError as error:
            raise unreadable(path, error) from error
        expected = self._sizes[info.file]
        if size_bytes != expected or done < len(target):
            raise NotReadable(
                f"{path.name} had {expected} bytes and now has {size_bytes}",
                where=str(path),
                hint="another program has changed it: try again when that is finished",
            )

    def read_rows_into(self, rows: NDArray[uint8], info: TensorInfo, starts: Iterable[int]) -> None:
        """Fill each of `rows` (R, row_bytes) with the tensor's bytes from its start on.

        Many short reads, with one call of the system each. Raises as `read_into` does.
        """
        file = None
        if self.checkpoint.folder.path is not None and hasattr(os, "preadv"):
            file = self._opened(info.file).fileno()
        for row, start_bytes in zip(rows, starts, strict=True):
            is_inside = 0 <= start_bytes <= info.size_bytes - row.nbytes
            at = info.offset_bytes + start_bytes
            try:
                is_read = (
                    file is not None and is_inside and os.preadv(file, [row], at) == row.nbytes
                )
            except OSError:
                is_read = False
            if not is_read:
                self.read_into(row.data, info, start_bytes)  # or its error, in words

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _remote(self, name: str) -> ByteReader:
        if name not in self._readers:
            self._readers[name] = self.checkpoint.folder.open_weights(name)
        return self._readers[name]

    def _opened(self, name: str) -> FileIO:
        if name not in self._files:
            path = self.checkpoint.local_path(name)
            try:
                self._files[name] = FileIO(path)
            except OSError as error:
                raise unreadable(path, error) from error
        return self._files[name]
