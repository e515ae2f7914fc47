"""Files of layers that stay on disk, in the layout of the native kernels; made once for a model.

Each layer has a file, and each table that is read by rows, in the platform's cache folder: whole
or absent, under the name of the model and of what decides its bytes. After the matrices it has
JSON: the key of those bytes, and the CRC-32 of each piece in which each part is read.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from mrs.devices.disk import model_folder
from mrs.devices.expert_uses import read_uses
from mrs.errors import DoesNotFit, NotReadable, Unsupported
from mrs.events import LoadProgress, OnProgress
from mrs.kernels.cpu.packed import ExpertSource, PackedMatrix
from mrs.kernels.huge_pages import HugePageArena
from mrs.model.disk_experts import DiskExperts, ExpertsFile
from mrs.model.disk_layers import DiskLayer, DiskLayers
from mrs.model.disk_tables import DiskTable
from mrs.process.direct_file import DirectFile, checksums, pieces, whole_blocks
from mrs.process.files import TEMPORARY_SUFFIX, replace_file
from mrs.quantization.layer_layout import (
    EXPERT_ROOMS,
    LAYERS_IN_MEMORY,
    LayerLayout,
    TableLayout,
    packed_size,
)
from mrs.quantization.storage import Storage
from mrs.quantization.targets import Memory, Target
from mrs.units import human_bytes
from mrs.weights.binding import Parameter

#: A larger end of a file is not one of these.
_MOST_FOOTER_BYTES = 1 << 20
#: Loads a parameter into memory; if True, its bytes will be there without being loaded.
LoadOne = Callable[[Parameter, Memory, bool], Target]
#: The packed bytes of a parameter, uint8, some whole groups of rows at a time.
PackRows = Callable[[Parameter], Iterator[Tensor]]


class _OneMatrix:
    """Memory for one matrix."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory

    def allocate(self, size_bytes: int) -> Tensor:
        assert size_bytes == len(self._memory)
        return self._memory


def folder_of(model_id: str, key: str) -> Path:
    """The folder of the files of a model's layers with these bytes."""
    return model_folder(model_id) / key[:16]


class LayerFiles:
    """The files of the layers of a model that stay on disk, and memory to read them into.

    `key` is of all that decides the bytes of the layers. Of mixtures, `expert_slots` experts have
    memory. `tables` are read by rows.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        layouts: Mapping[int, LayerLayout],
        expert_slots: int,
        tables: Mapping[str, TableLayout],
        report: OnProgress = lambda progress: None,
    ) -> None:
        self._folder, self._key, self._layouts, self._report = folder, key, layouts, report
        self._table_layouts = tables
        buffers = [each.memory_bytes for each in self._table_layouts.values()]
        arena = HugePageArena(buffers)
        self._buffers = [arena.allocate(size_bytes) for size_bytes in buffers]
        #: Matrices that are read by rows, by the names of their parameters; once loaded.
        self.tables: dict[str, DiskTable] = {}
        self._slots = _memory(_some(layouts, is_mixture=True), expert_slots + EXPERT_ROOMS)
        self._turns = _memory(_some(layouts, is_mixture=False), LAYERS_IN_MEMORY)
        #: Layers that are read whole, and experts that are read when they are chosen; once loaded.
        self.layers: DiskLayers | None = None
        self.experts: DiskExperts | None = None
        self._mixed: list[PackedMatrix] = []
        self._names = {n for layout in layouts.values() for part in layout.parts for n in part}
        self._names.update(self._table_layouts)

    def __contains__(self, name: str) -> bool:
        """Whether the parameter of this name stays on disk."""
        return name in self._names

    def load(
        self,
        parameters: Sequence[Parameter],
        storage: Mapping[str, Storage],
        load: LoadOne,
        pack_rows: PackRows,
    ) -> None:
        """Make the files that are missing, and `layers`, `experts` and `tables`.

        Raises NotReadable, and DoesNotFit if the disk is too small.
        """
        by_name = {parameter.name: parameter for parameter in parameters}
        with _errors_of(self._folder), _locked(self._folder):
            found = {layer: self._found_layer(layer) for layer in self._layouts}
            missing = [layer for layer, sums in found.items() if sums is None]
            tables = {name: self._found_table(name) for name in self._table_layouts}
            self._require_room(missing, [name for name, sums in tables.items() if sums is None])
            for (name, sums), buffer in zip(tables.items(), self._buffers, strict=True):
                table = self._table_layouts[name]
                if sums is None:
                    rows = _by_group(pack_rows(by_name[name]), table.group_bytes)
                    sums = self._write(_table_file(name), rows, whole_blocks(table.weight_bytes))
                file = DirectFile(self._path(_table_file(name)))
                self.tables[name] = DiskTable(file, table, sums, buffer)
            whole: dict[int, DiskLayer] = {}
            mixed: dict[int, ExpertsFile] = {}
            for layer, layout in self._layouts.items():
                memory = self._slots[0] if layout.is_mixture else self._turns[len(whole) % 2]
                matrices: list[list[tuple[PackedMatrix, int]]] = []
                parts = self._parts(layout, memory, by_name, storage, load, matrices)
                sums = found[layer]
                if sums is None:
                    sums = self._write(_layer_file(layer), parts(is_there=False), layout.size_bytes)
                    self._tell(missing, layer)
                else:
                    deque(parts(is_there=True), maxlen=0)
                file = DirectFile(self._path(_layer_file(layer)))
                if layout.is_mixture:
                    mixed[layer] = ExpertsFile(file, layout.part_bytes, sums, matrices)
                else:
                    own = [matrix for matrix, _ in matrices[0]]
                    whole[layer] = DiskLayer(file, layout.size_bytes, sums[0], own)
        if whole:
            self.layers = DiskLayers(whole, self._turns)
        if mixed:
            *slots, room = self._slots
            self.experts = DiskExperts(mixed, slots, room)
            for layer, experts in mixed.items():
                for matrix, _ in chain.from_iterable(experts.matrices):
                    matrix.source = ExpertSource(self.experts, layer)
                    self._mixed.append(matrix)
            model = self._folder.parent
            counts = {layer: len(each.matrices) for layer, each in mixed.items()}
            self.experts.begin_with(read_uses(model, counts))
            self.experts.keep_uses(model)

    def require_asking(self) -> None:
        """Raises Unsupported if programs do not ask for their experts. Call it once they exist."""
        for matrix in self._mixed:
            matrix.source = None  # which refers to the matrix
        silent = self.experts.silent if self.experts is not None else ()
        if silent:
            raise Unsupported(
                f"the experts of layer {min(silent)} cannot stay on disk: no native kernel "
                "computes them",
                where="--disk-layers",
                hint="leave it out",
            )

    def _parts(
        self,
        layout: LayerLayout,
        memory: Tensor,
        parameters: Mapping[str, Parameter],
        storage: Mapping[str, Storage],
        load: LoadOne,
        matrices: list[list[tuple[PackedMatrix, int]]],
    ) -> Callable[..., Iterator[memoryview]]:
        """A function that gives the bytes of each part, once it is loaded to `memory`.

        It adds the matrices of each part to `matrices`.
        """

        def parts(*, is_there: bool) -> Iterator[memoryview]:
            for part in layout.parts:
                own = []
                for name, start in part.items():
                    at = memory[start : start + packed_size(storage[name])]
                    matrix = load(parameters[name], _OneMatrix(at), is_there).matrix()
                    assert isinstance(matrix, PackedMatrix), name
                    matrix.leave_on_disk()
                    own.append((matrix, start))
                matrices.append(own)
                yield memory[: layout.part_bytes].numpy().data

        return parts

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.mrs"

    def _footer(self, name: str, sums: Sequence[Sequence[int]]) -> bytes:
        return json.dumps({"key": f"{self._key} {name}", "checksums": sums}).encode()

    def _found_layer(self, layer: int) -> list[list[int]] | None:
        layout = self._layouts[layer]
        counts = [len(list(pieces(layout.part_bytes)))] * len(layout.parts)
        return self._read_footer(_layer_file(layer), layout.size_bytes, counts)

    def _found_table(self, name: str) -> list[list[int]] | None:
        layout = self._table_layouts[name]
        counts = [len(list(pieces(layout.group_bytes)))] * layout.groups
        return self._read_footer(_table_file(name), whole_blocks(layout.weight_bytes), counts)

    def _read_footer(
        self, name: str, size_bytes: int, expected: Sequence[int]
    ) -> list[list[int]] | None:
        """The checksums of a file, as many as `expected` of each part.

        None if there is no such file, or it is not whole.
        """
        path = self._path(name)
        if not path.exists() or path.stat().st_size - size_bytes > _MOST_FOOTER_BYTES:
            return None
        with path.open("rb") as file:
            file.seek(size_bytes)
            footer = file.read()
        try:
            read: Any = json.loads(footer)
            sums: list[list[int]] = read["checksums"]
            counts = [len(part) for part in sums]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return sums if counts == expected and footer == self._footer(name, sums) else None

    def _write(self, name: str, parts: Iterator[memoryview], size_bytes: int) -> list[list[int]]:
        """Write a file of parts in so many bytes; the checksums of the pieces of each part."""
        sums: list[list[int]] = []

        def content() -> Iterator[bytes | memoryview]:
            left = size_bytes
            for part in parts:
                sums.append(checksums(part))
                left -= len(part)
                yield part
            yield bytes(left)
            yield self._footer(name, sums)

        replace_file(self._path(name), content())
        return sums

    def _require_room(self, layers: Sequence[int], tables: Sequence[str]) -> None:
        needed = sum(self._layouts[layer].size_bytes for layer in layers)
        needed += sum(self._table_layouts[name].weight_bytes for name in tables)
        free = shutil.disk_usage(self._folder).free if needed else 0
        if needed > free:
            counts = {"layers": len(layers), "tables": len(tables)}
            what = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
            raise DoesNotFit(
                f"{what} need {human_bytes(needed)} of disk, and {human_bytes(free)} are free",
                missing_bytes=needed - free,
                where=str(self._folder),
                hint="free some, or name a larger disk in XDG_CACHE_HOME",
            )

    def _tell(self, missing: Sequence[int], layer: int) -> None:
        sizes = [self._layouts[each].size_bytes for each in missing]
        done = sum(sizes[: missing.index(layer) + 1])
        self._report(LoadProgress("layers on disk", done, sum(sizes)))


def _layer_file(layer: int) -> str:
    return f"layer-{layer:04}"


def _table_file(name: str) -> str:
    return f"table-{name}"


def _by_group(chunks: Iterator[Tensor], group_bytes: int) -> Iterator[memoryview]:
    for chunk in chunks:
        content = chunk.numpy().data
        for start in range(0, len(content), group_bytes):
            yield content[start : start + group_bytes]


def _some(layouts: Mapping[int, LayerLayout], *, is_mixture: bool) -> list[LayerLayout]:
    return [layout for layout in layouts.values() if layout.is_mixture == is_mixture]


def _memory(layouts: Sequence[LayerLayout], count: int) -> list[Tensor]:
    """Memory for so many parts of any of the layers; none without layers."""
    if not layouts:
        return []
    most = max(layout.part_bytes for layout in layouts)
    arena = HugePageArena([most] * count)
    return [arena.allocate(most) for _ in range(count)]


@contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    """Errors of the system in words. Raises NotReadable and DoesNotFit."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or folder)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DoesNotFit(
                "the disk is full: the layers that stay on disk do not fit",
                missing_bytes=0,
                where=where,
                hint="free some, or name a larger disk in XDG_CACHE_HOME",
            ) from error
        what, hint = "the files of layers cannot be used", error.strerror or str(error)
        raise NotReadable(what, where=where, hint=hint) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes files here; what a killed one has left is removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in folder.glob(f".*{TEMPORARY_SUFFIX}"):
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
