"""The native library: loading it, choosing its CPU path, and the types of its functions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

from mrs.devices.cpu_path import PATH_NAMES, cpu_path, cpu_paths
from mrs.kernels.c_structs import SIGNATURES, Outcome
from mrs.kernels.cpu import library_file
from mrs.kernels.cpu.library_file import is_available
from mrs.kernels.cpu.outcome import require_done


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library, and the name and address of the CPU path in use."""

    functions: ctypes.CDLL
    path: str
    path_address: int


@cache
def native_library() -> NativeLibrary | None:
    """The library; None if it was not built or MRS_CPU_PATH is `torch`."""
    if not is_available():
        return None
    path, functions = cpu_path(), _open_library()
    return NativeLibrary(functions, path, functions.mrs_path(path.encode()))


def native_paths() -> list[str]:
    """The native CPU paths that this processor supports, best first; [] without the library."""
    return [path for path in cpu_paths() if path != "torch"] if library_file.PATH.exists() else []


def path_name() -> str:
    """The CPU path of matrix products as a text for people: "native AVX-512 VNNI", …, "torch"."""
    library = native_library()
    return PATH_NAMES["torch" if library is None else library.path]


def _open_library() -> ctypes.CDLL:
    functions = ctypes.CDLL(str(library_file.PATH))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
        if result is Outcome:
            function.errcheck = require_done
    return functions
