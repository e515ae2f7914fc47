"""The native path `amx` on processors without AMX: its tiles are emulated in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mrs.kernels.cpu.library import NativeLibrary, native_library, native_paths
from mrs.kernels.cpu.native import compile as native

SOURCE = Path(__file__).parents[1] / "kernels" / "emulated_tiles.c"
COMPILER = shutil.which("gcc") or shutil.which("clang")
#: It runs on the lanes of these paths; the first has all other kernels of `amx`.
BASE_PATHS = [path for path in ("avx512_bf16", "avx512") if path in native_paths()]
needs_avx512 = pytest.mark.skipif(
    not (COMPILER and BASE_PATHS), reason="needs AVX-512 VNNI and a C compiler"
)


def compile_emulation(folder: Path, *more_flags: str) -> ctypes.CDLL:
    """The emulated kernels; -Og compiles them soonest."""
    library = folder / "emulated_tiles.so"
    flags = native._PROCESSOR["x86_64"]["isa/amx.c"]
    includes = [f"-I{native.LIBRARY.parent}", f"-I{SOURCE.parent}"]
    command = [COMPILER, "-std=gnu11", "-Og", "-shared", "-fPIC", "-ffp-contract=off", *flags]
    sources = [SOURCE, native.LIBRARY.parent / "gemm/prefetch.c"]
    subprocess.run([*command, *includes, *more_flags, *sources, "-o", library], check=True)
    functions = ctypes.CDLL(str(library))
    functions.emulated_kernels.restype = ctypes.c_void_p
    functions.emulated_kernels.argtypes = (ctypes.c_void_p,)
    functions.emulated_products.restype = functions.emulated_threads.restype = ctypes.c_int64
    return functions


def emulated_library(functions: ctypes.CDLL) -> NativeLibrary:
    """The loaded library, with the kernels of `amx` where its own are those of AVX-512."""
    library = native_library()
    assert library is not None
    base = library.functions.mrs_path(BASE_PATHS[0].encode())
    return replace(library, path="amx", path_address=functions.emulated_kernels(base))
