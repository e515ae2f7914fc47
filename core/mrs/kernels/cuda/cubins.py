"""Compiled kernels, kept in the cache folder: a machine compiles each once."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mrs.kernels.cuda.nvrtc import Nvrtc
from mrs.process.files import read_at_most, replace_file

SOURCES = Path(__file__).parent / "source"
FOLDER = "kernels"
#: Of a file; a kernel has tens of kilobytes.
MAX_FILE_BYTES = 4 << 20
#: Of files; beyond it the oldest are removed.
MAX_FILES = 400
_DIGEST_BYTES = 32


class Kernel(NamedTuple):
    """A kernel of `source/<name>.cu`, with options such as `-DTILES=1` for what it leaves open."""

    name: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, name: str, **values: object) -> Kernel:
        """The kernel with values for the names that it leaves open."""
        spelled = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in values.items()
        }
        return cls(name, tuple(f"-D{key}={value}" for key, value in sorted(spelled.items())))


@cache
def sources() -> dict[str, bytes]:
    """The text of every source by its name."""
    return {path.name: path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.is_file()}


def cubin_of(kernel: Kernel, architecture: str, compiler: Nvrtc) -> bytes:
    """The code of a kernel, from the cache folder or compiled anew. Raises CompilerError.

    A file's name is a hash of all that the code depends on, and its first bytes are a hash of the
    rest: what is damaged is compiled again. A folder that cannot be written is not an error.
    """
    from platformdirs import user_cache_path

    path = (
        user_cache_path("mrs") / FOLDER / f"{_name(kernel, architecture, compiler.version)}.cubin"
    )
    with suppress(OSError, ValueError):
        stored = read_at_most(path, MAX_FILE_BYTES)
        if hashlib.sha256(stored[_DIGEST_BYTES:]).digest() == stored[:_DIGEST_BYTES]:
            return stored[_DIGEST_BYTES:]
    cubin, _ = compile_kernel(kernel, architecture, compiler)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [hashlib.sha256(cubin).digest(), cubin])
        _remove_oldest(path.parent)
    return cubin


def compile_kernel(
    kernel: Kernel, architecture: str, compiler: Nvrtc, *options: str
) -> tuple[bytes, str]:
    """The code of a kernel and what the compiler said. Raises CompilerError."""
    texts = dict(sources())
    name = f"{kernel.name}.cu"
    source = texts.pop(name)
    headers = {each: text for each, text in texts.items() if each.endswith(".h")}
    return compiler.compile(name, source, headers, architecture, (*kernel.options, *options))


def _name(kernel: Kernel, architecture: str, version: tuple[int, int]) -> str:
    found = hashlib.sha256(repr((kernel, architecture, version)).encode())
    for name, text in sources().items():
        found.update(f"\n{name} {len(text)}\n".encode() + text)
    return found.hexdigest()


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.cubin"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(len(files) - MAX_FILES, 0)]:
        path.unlink()
