"""The native library: loading it, choosing its CPU path, and the signatures of its functions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

from mrs.devices.cpu_path import PATH_NAMES, cpu_path, cpu_paths
from mrs.kernels.cpu import library_file
from mrs.kernels.cpu.library_file import is_available
from mrs.kernels.cpu.outcome import NativeOutcome, require_done


class NativeMatrix(ctypes.Structure):
    """A packed matrix: a C struct of native/gemm/products.h."""

    _fields_ = (
        ("kernels", ctypes.c_void_p),
        ("format", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("subnormal", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("residuals", ctypes.c_bool),
    )


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library, and the name and address of the CPU path in use."""

    functions: ctypes.CDLL
    path: str
    path_address: int


_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mrs_path": (_POINTER, (ctypes.c_char_p,)),
    "mrs_row_bytes": (_LONG, (_INT, _LONG)),
    "mrs_packed_bytes": (_LONG, (_INT, _LONG, _LONG)),
    "mrs_pack": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "mrs_mark_subnormal": (None, (_POINTER, _INT)),
    "mrs_decode": (NativeOutcome, (_POINTER, _POINTER, _LONG, _INT, _POINTER, _INT)),
    "mrs_matmul": (NativeOutcome, (_POINTER, _POINTER, _INT, _LONG, _POINTER, _INT)),
    "mrs_read": (None, (_POINTER, _POINTER, _LONG, _INT)),
    "mrs_multiply_registers": (_LONG, (_POINTER, _INT, _LONG, _INT)),
    "mrs_rms_norm": (None, (_POINTER, _POINTER, _POINTER, _FLOAT, _LONG, _LONG, _POINTER, _INT)),
    "mrs_layer_norm": (None, (*(_POINTER,) * 4, _FLOAT, *(_LONG,) * 3, _POINTER, _INT)),
    "mrs_xielu": (None, (*(_POINTER,) * 3, _LONG, _INT)),
    "mrs_gate": (None, (_POINTER, _INT, _POINTER, _POINTER, _LONG, _INT)),
    "mrs_cut_off": (None, (_POINTER, _LONG, _LONG, ctypes.c_double, _INT)),
    "mrs_rotate": (None, (*(_POINTER,) * 4, *(_LONG,) * 4, _INT, _POINTER, _INT)),
    "mrs_multiply_dense": (None, (_POINTER, _POINTER, _INT)),
    "mrs_route": (None, (*(_POINTER,) * 3, _LONG, *(_POINTER,) * 4, _INT)),
    "mrs_delta_rule": (NativeOutcome, (_POINTER, _POINTER, _INT)),
    "mrs_key_delta_rule": (NativeOutcome, (_POINTER, _POINTER, _INT)),
    "mrs_convolve": (None, (_POINTER, _POINTER, _INT)),
    "mrs_state_space": (None, (_POINTER, _POINTER, _INT)),
    "mrs_attend": (NativeOutcome, (_POINTER, _POINTER, _INT)),
    "mrs_write_kv": (NativeOutcome, (*(_POINTER,) * 5, _LONG, _LONG, _INT)),
    "mrs_run": (NativeOutcome, (_POINTER, _LONG, _POINTER, _INT)),
    "mrs_encode": (
        None,
        (_POINTER, _INT, _POINTER, _INT, _LONG, _POINTER, _LONG, _POINTER, _INT),
    ),
}


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
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
        if result is NativeOutcome:
            function.errcheck = require_done
    return functions
