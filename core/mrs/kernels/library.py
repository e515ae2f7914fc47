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


class NativeMatrix(ctypes.Structure):
    """One packed matrix as the library sees it."""

    _fields_ = (
        ("path", ctypes.c_void_p),
        ("format", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library and the path of it that is used: its name and its address."""

    functions: ctypes.CDLL
    path: str
    path_address: int


_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mrs_path": (_POINTER, (_INT,)),
    "mrs_row_bytes": (_LONG, (_INT, _LONG)),
    "mrs_packed_bytes": (_LONG, (_INT, _LONG, _LONG)),
    "mrs_pack": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "mrs_decode": (ctypes.c_bool, (_POINTER, _POINTER, _LONG, _LONG, _INT, _POINTER, _INT)),
    "mrs_matmul": (ctypes.c_bool, (_POINTER, _POINTER, _INT, _LONG, _POINTER, _INT)),
    "mrs_read": (None, (_POINTER, _POINTER, _LONG, _INT)),
    "mrs_rms_norm": (None, (_POINTER, _POINTER, _POINTER, _FLOAT, _LONG, _LONG, _POINTER, _INT)),
    "mrs_gate": (None, (_POINTER, _INT, _POINTER, _POINTER, _LONG, _INT)),
    "mrs_rotate": (None, (*(_POINTER,) * 4, *(_LONG,) * 4, _INT, _POINTER, _INT)),
    "mrs_attend": (ctypes.c_bool, (_POINTER, _POINTER, _INT)),
    "mrs_feed_forward": (
        ctypes.c_bool,
        (_POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _INT),
    ),
    "mrs_write_kv": (None, (*(_POINTER,) * 4, _LONG, _INT)),
    "mrs_attention": (ctypes.c_bool, (*(_POINTER,) * 7, _INT)),
    "mrs_layers": (ctypes.c_bool, (_POINTER, _LONG, *(_POINTER,) * 6, _INT)),
    "mrs_encode": (None, (_POINTER, _INT, _POINTER, _INT, _LONG, _POINTER, _INT)),
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
    return NativeLibrary(functions, name, paths[name])


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
