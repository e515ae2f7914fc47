"""How fast the disk of the cache folder is read, past the system's page cache: measured or assumed.

Layers that stay on disk are in that folder, and read in the same way.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from urllib.parse import quote, unquote

from mrs.devices.measurements import cache_file, read_entries, write_entries
from mrs.process.direct_file import BLOCK_BYTES, DirectFile, DirectReader

#: File systems have names of up to 255 bytes.
_NAME_CHARACTERS = 200
FILE_NAME = "disk.json"
#: Between an SSD on SATA, which reads half of it, and those on PCI Express, which read 2 to 14.
ASSUMED_BYTES_PER_S = 1e9
#: No disk reads faster: such a figure is that of a cache.
MOST_BYTES_PER_S = 1e11
MEASURED_BYTES = 128 << 20
#: Shared memory, Python's default, has no huge pages.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}


def layers_folder() -> Path:
    """The folder of the layers of all models that stay on disk."""
    return cache_file("layers")


def layers_name(model_id: str) -> str:
    """The name of a model's folder there: its hub id, or the path of its files."""
    path = Path(model_id).expanduser()
    name = str(path.resolve()) if path.exists() else model_id
    return quote(name, safe="")[-_NAME_CHARACTERS:]


def model_folder(model_id: str) -> Path:
    """The folder of the layers of a model, and of how it uses its experts."""
    return layers_folder() / layers_name(model_id)


def layers_folders() -> dict[str, Path]:
    """The folder of each model that has such layers, by its hub id or path (long ones: the end)."""
    folder = layers_folder()
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {unquote(each.name): each for each in found if each.is_dir()}


def disk_bandwidth() -> tuple[float, bool]:
    """Bytes a second, and whether they were measured."""
    measured = read_entries(cache_file(FILE_NAME)).get(str(layers_folder()))
    if isinstance(measured, int | float) and 0 < measured <= MOST_BYTES_PER_S:
        return float(measured), True
    return ASSUMED_BYTES_PER_S, False


def learn_disk_bandwidth() -> float:
    """Measure bytes a second, for the plans made from now on. Raises OSError."""
    speed = _measured()
    path = cache_file(FILE_NAME)
    write_entries(path, {**read_entries(path), str(layers_folder()): round(speed)})
    return speed


def _measured() -> float:
    """Of a file of random bytes, which no file system shortens. It takes about a second."""
    folder = layers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f".{os.getpid()}.measured"
    memory = _touched_memory(MEASURED_BYTES)
    try:
        with path.open("xb") as file:
            some = os.urandom(1 << 20)
            for n in range(MEASURED_BYTES >> 20):
                file.write(n.to_bytes(8, "little") + some[8:])
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = perf_counter()
        for piece in DirectReader().begin(DirectFile(path), memory):
            piece.result()
        return MEASURED_BYTES / (perf_counter() - start)
    finally:
        path.unlink(missing_ok=True)


def _touched_memory(size_bytes: int) -> memoryview:
    """On huge pages where there are any, as layers are read to: others take longer to read to."""
    memory = mmap.mmap(-1, size_bytes, **_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, size_bytes, BLOCK_BYTES):
        memory[start] = 0
    return memoryview(memory)
