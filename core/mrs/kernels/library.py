"""The native library: finding it, choosing its path, and the types that cross into it."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path


#: Names a lower path than the processor allows: one of `PATH_NAMES`, or "torch".
PATH_VARIABLE = "MRS_CPU_PATH"

#: What the paths are called in front of people.
PATH_NAMES = {
    "avx512": "native AVX-512 VNNI",
    "avx2": "native AVX2",
    "neon": "native NEON",
    "portable": "native C",
}

_LIBRARY = (
    Path(__file__).parent / "native" / ("libmrs.dylib" if sys.platform == "darwin" else "libmrs.so")
)


class _Path(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p),)


class _Context(ctypes.Structure):
    _fields_ = (("path", ctypes.c_void_p), ("gomp_parallel", ctypes.c_void_p))


class NativeMatrix(ctypes.Structure):
    """One packed matrix as the library sees it."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("format", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library. `context` is the address every call starts from."""

    functions: ctypes.CDLL
    path: str
    context: int
    _kept: _Context


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mrs_path": (_POINTER, (_INT,)),
    "mrs_row_bytes": (_LONG, (_INT, _LONG)),
    "mrs_packed_bytes": (_LONG, (_INT, _LONG, _LONG)),
    "mrs_pack": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "mrs_decode": (None, (_POINTER, _POINTER, _LONG, _POINTER, _INT)),
    "mrs_matmul": (ctypes.c_bool, (_POINTER, _POINTER, _INT, _LONG, _POINTER, _INT)),
    "mrs_read": (None, (_POINTER, _POINTER, _LONG, _INT)),
}


def is_available() -> bool:
    """Whether the library was built and is not switched off; loads nothing."""
    return os.environ.get(PATH_VARIABLE) != "torch" and _LIBRARY.exists()


@cache
def native_library() -> NativeLibrary | None:
    """The library, or None where it was not built or the environment asks for torch."""
    wanted = os.environ.get(PATH_VARIABLE)
    functions = None if wanted == "torch" else _open_library()
    if functions is None:
        return None
    paths = _paths(functions)
    name = wanted or next(iter(paths))
    if name not in paths:
        known = ", ".join((*paths, "torch"))
        raise ValueError(f"{PATH_VARIABLE}={name}: this processor has {known}")
    context = _Context(paths[name], _gomp_parallel())
    return NativeLibrary(functions, name, ctypes.addressof(context), context)


def native_paths() -> list[str]:
    """The native paths that this processor can run, best first; empty where none was built."""
    functions = _open_library()
    return [] if functions is None else list(_paths(functions))


def path_name() -> str:
    """How matrix products run on this CPU, for people: "native AVX-512 VNNI", …, "torch"."""
    library = native_library()
    return "torch" if library is None else PATH_NAMES[library.path]


def _open_library() -> ctypes.CDLL | None:
    if not _LIBRARY.exists():
        return None
    functions = ctypes.CDLL(str(_LIBRARY))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


def _paths(functions: ctypes.CDLL) -> dict[str, int]:
    """Addresses of this processor's paths by their names, best first."""
    addresses = (functions.mrs_path(index) for index in range(len(PATH_NAMES)))
    return {_Path.from_address(address).name.decode(): address for address in addresses if address}


def _gomp_parallel() -> int | None:
    """The entry of the OpenMP runtime that torch has loaded, so that one pool serves both.

    GOMP_parallel(body, data, threads, flags) is part of GNU's stable interface, and LLVM's and
    Intel's runtimes export it too. None where there is no such runtime.
    """
    for path in _loaded_openmp():
        try:
            entry = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(entry, ctypes.c_void_p).value
    return None


def _loaded_openmp() -> list[str]:
    """Files of OpenMP runtimes in this process, torch's own first."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        lines = maps.read_text().splitlines()
        files = {line.split(maxsplit=5)[5] for line in lines if "omp" in line and "/" in line}
    else:
        import torch

        folder = Path(torch.__file__).parent / "lib"
        files = {str(path) for path in folder.glob("lib*omp*.dylib")}
    names = ("libgomp", "libomp", "libiomp")
    return sorted(
        (file for file in files if Path(file).name.startswith(names)),
        key=lambda file: "torch" not in file,
    )
