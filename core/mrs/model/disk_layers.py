"""Layers whose matrices are on disk, and are read again for each step.

Few of them have memory at a time: while one is computed, the next one is read into other memory.
Every layer has its place there, which never changes, so that programs of the native library have
the addresses of its matrices. The layer that is read ahead after the last one is the first again,
for the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from mrs.errors import NotReadable
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.process.direct_file import DirectFile, DirectReader, checksums


@dataclass(frozen=True)
class DiskLayer:
    """A layer's file, which begins with its matrices, and the CRC-32 of each piece of them."""

    file: DirectFile
    size_bytes: int
    checksums: Sequence[int]
    matrices: Sequence[PackedMatrix]


@dataclass(frozen=True)
class _Reading:
    layer: int
    pieces: Sequence[Future[None]]


class DiskLayers:
    """The layers of a model that are on disk, by index, and the memory that they share.

    Layers take turns with the parts of `memory`, uint8 each, in their order. All are used by one
    thread.
    """

    def __init__(self, layers: Mapping[int, DiskLayer], memory: Sequence[Tensor]) -> None:
        self._layers = dict(layers)
        self._memory = [part.numpy().data for part in memory]
        order = list(self._layers)
        count = len(memory)
        self._places = {layer: turn % count for turn, layer in enumerate(order)}
        #: The layer that is read after each one into the same memory.
        self._next: dict[int, int] = {}
        for place in range(count):
            turns = order[place::count]
            self._next.update(zip(turns, turns[1:] + turns[:1], strict=True))
        self._unchecked = set(order)
        self._readings: list[_Reading | None] = [None] * count
        self._reader = DirectReader()
        for layer in order[:count]:
            self._begin(layer)

    def __contains__(self, layer: object) -> bool:
        return layer in self._layers

    @contextmanager
    def held(self, layer: int) -> Iterator[None]:
        """The layer's matrices are in memory until the end. Raises NotReadable."""
        if layer not in self._layers:
            yield
            return
        self._wait_for(layer)
        try:
            yield
        finally:
            if self._next[layer] != layer:
                self._begin(self._next[layer])

    def _begin(self, layer: int) -> None:
        """Begin to read a layer into its memory, which nothing uses any more."""
        place, disk = self._places[layer], self._layers[layer]
        reads = self._reader.begin(disk.file, self._memory[place][: disk.size_bytes])
        self._readings[place] = _Reading(layer, reads)

    def _wait_for(self, layer: int) -> None:
        place = self._places[layer]
        reading = self._readings[place]
        if reading is None or reading.layer != layer:  # the step before was given up
            if reading is not None:
                wait(reading.pieces)
            self._begin(layer)
            reading = self._readings[place]
            assert reading is not None
        try:
            for piece in reading.pieces:
                piece.result()
            if layer in self._unchecked:
                self._check(layer)
        except OSError as error:
            wait(reading.pieces)
            self._readings[place] = None
            raise NotReadable(
                f"layer {layer} cannot be read from disk",
                where=str(self._layers[layer].file.path),
                hint=f"{error.strerror or error}; start again to make the file anew",
            ) from error

    def _check(self, layer: int) -> None:
        """Of a layer that was read for the first time. Raises OSError if it is damaged."""
        disk, memory = self._layers[layer], self._memory[self._places[layer]]
        if checksums(memory[: disk.size_bytes]) != list(disk.checksums):
            disk.file.path.unlink(missing_ok=True)
            raise OSError("its bytes are damaged")
        for matrix in disk.matrices:
            matrix.mark_subnormal()
        self._unchecked.remove(layer)
