"""A plugin of pytest: a processor with AVX-512 has AMX, whose tiles are emulated in C.

    PYTHONPATH=tests python -m pytest -p emulated_amx_machine tests/kernels tests/model

Only in this process: tests that start others are to be left out.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import wraps
from pathlib import Path

from mrs.devices import cpu_path
from mrs.kernels.cpu import library
from support.emulated_amx import BASE_PATHS, compile_emulation

_flags, _open_library = cpu_path._flags, library._open_library
with tempfile.TemporaryDirectory() as _folder:
    _emulation = compile_emulation(Path(_folder))


def _open_with_tiles() -> ctypes.CDLL:
    functions = _open_library()
    real = functions.mrs_path
    emulated = _emulation.emulated_kernels(real(BASE_PATHS[0].encode()))
    functions.mrs_path = lambda name: emulated if name == b"amx" else real(name)
    return functions


os.environ.setdefault(cpu_path.TORCH_VARIABLE, "AVX512_CORE_FP16")  # torch has no tiles
cpu_path._flags = wraps(_flags)(lambda: _flags() | {"amx_tile", "amx_int8", "amx_bf16"})
cpu_path._may_use_tiles = lambda: True
library._open_library = _open_with_tiles
