"""The weights of a local model: each tensor's bytes where they lie in the file, never copied."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from types import TracebackType
from typing import final

from mrs.errors import NotReadable
from mrs.source.checkpoint import Checkpoint, TensorInfo
from mrs.source.reader import unreadable


@final
class Weights:
    """Memory-mapped tensors of a checkpoint; a context manager.

    A file is mapped when its first tensor is asked for. Views stay valid as long as something
    holds them: a mapping that is still looked at is given back with its last view.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._maps: dict[str, _MappedFile] = {}
        self._sizes = {file.name: file.size_bytes for file in checkpoint.files}

    def tensor_bytes(self, info: TensorInfo) -> memoryview:
        """The tensor's bytes, read-only; NotReadable if the file has changed its size."""
        mapped = self._mapped(info.file)
        mapped.check_size()
        begin = info.offset_bytes
        return mapped.view[begin : begin + info.size_bytes]

    def release(self, info: TensorInfo) -> None:
        """Let the system forget the tensor's pages, so that they no longer count as used.

        For a tensor that has been copied to its device. Looking at it again reads it again.
        """
        self._mapped(info.file).forget(info.offset_bytes, info.size_bytes)

    def close(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _mapped(self, file: str) -> _MappedFile:
        if file not in self._maps:
            self._maps[file] = _MappedFile(self.checkpoint, file, self._sizes[file])
        return self._maps[file]


class _MappedFile:
    def __init__(self, checkpoint: Checkpoint, file: str, size_bytes: int) -> None:
        self.path = checkpoint.local_path(file)
        self.size_bytes = size_bytes
        try:
            self.file = self.path.open("rb")
            self.check_size()
            self.mapping = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.view = memoryview(self.mapping)

    def check_size(self) -> None:
        """A page behind the end of a file that has shrunk would kill the process when touched."""
        found = os.fstat(self.file.fileno()).st_size
        if found != self.size_bytes:
            raise NotReadable(
                f"{self.path.name} had {self.size_bytes} bytes and now has {found}",
                where=str(self.path),
                hint="another program has changed it: load again when it is done",
            )

    def forget(self, offset: int, length: int) -> None:
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + length) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            self.mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        self.file.close()
        self.view.release()
        with suppress(BufferError):  # a tensor still looks at it and will unmap it
            self.mapping.close()
