"""Which instructions of the CPU the native kernels and torch use.

A *path* is one build of the native kernels for a set of instructions. The kernels and the planner
both ask this module, so that a plan describes the path that runs.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from mrs.errors import UsageError

#: This environment variable selects another path than the best one, by its key in `PATH_NAMES`.
PATH_VARIABLE = "MRS_CPU_PATH"

#: The paths and their names in messages, best first.
PATH_NAMES = {
    "amx": "native AVX-512 VNNI AMX",
    "avx512_bf16": "native AVX-512 VNNI BF16",
    "avx512": "native AVX-512 VNNI",
    "avx_vnni": "native AVX-VNNI",
    "avx2": "native AVX2",
    "neon": "native NEON",
    "portable": "native C",
    "torch": "torch",
}

_AVX2 = frozenset(("avx2", "fma", "f16c", "bmi2"))
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_BF16 = _AVX512 | {"avx512_bf16"}
#: Intel's cores without AMX multiply bf16 weights faster as float32, and without rounding the
#: activations: two fma a cycle, against half a product of bf16 pairs.
_INTEL = "GenuineIntel"
#: The flags of /proc/cpuinfo that each path needs.
_NEEDED: dict[str, frozenset[str]] = {
    "amx": _BF16 | {"amx_tile", "amx_int8", "amx_bf16"},
    "avx512_bf16": _BF16,
    "avx512": _AVX512,
    "avx_vnni": _AVX2 | {"avx_vnni"},
    "avx2": _AVX2,
    "neon": frozenset(("asimddp",)),
    "portable": frozenset(),
    "torch": frozenset(),
}

#: oneDNN, which multiplies matrices for torch, reads its highest instruction set from this
#: variable. `_TORCH_UNITS` lists the values that are too low for each unit that multiplies halves.
TORCH_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_BELOW_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
_BELOW_BF16 = (*_BELOW_AVX512, "AVX512_CORE", "AVX512_CORE_VNNI")
_BELOW_FP16 = (*_BELOW_BF16, "AVX512_CORE_BF16")
_BELOW_AMX = (*_BELOW_FP16, "AVX512_CORE_FP16", "AVX10_1_512")
_TORCH_UNITS = {
    "avx512_fp16": ("f16", _BELOW_FP16),
    "avx512_bf16": ("bf16", _BELOW_BF16),
    "amx_bf16": ("amx", _BELOW_AMX),
}


@cache
def _flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The flags of the first processor, and its vendor. All Macs that torch supports are alike."""
    if sys.platform == "darwin":
        return frozenset(("asimddp",)) if platform.machine() == "arm64" else frozenset()
    try:
        with cpuinfo.open(errors="replace") as lines:
            words: set[str] = set()
            for line in lines:
                if line.startswith(("vendor_id", "flags", "Features")):
                    words.update(line.split())
                if line.startswith(("flags", "Features")):
                    break
            return frozenset(words)
    except OSError:
        return frozenset()


@cache
def _may_use_tiles() -> bool:
    """Ask Linux to let the threads of this process use AMX's tiles; whether it does."""
    import ctypes

    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    words = map(ctypes.c_long, (arch_prctl, request_permission, tile_data))
    error: int = ctypes.CDLL(None).syscall(*words)
    return error == 0


def cpu_paths() -> list[str]:
    """The paths that this processor can run, best first; "torch" is the last."""
    flags = _flags()
    paths = [path for path, needed in _NEEDED.items() if needed <= flags]
    if paths[0] == "amx" and not _may_use_tiles():
        del paths[0]
    if paths[0] == "avx512_bf16" and _INTEL in flags:
        paths[:2] = reversed(paths[:2])
    return paths


def cpu_path() -> str:
    """The path that `MRS_CPU_PATH` selects, or else the best one.

    UsageError if this processor cannot run it.
    """
    paths = cpu_paths()
    wanted = os.environ.get(PATH_VARIABLE) or paths[0]
    if wanted not in paths:
        raise UsageError(
            f"this processor cannot run {PATH_VARIABLE}={wanted}",
            hint=f"it has {', '.join(paths)}",
        )
    return wanted


def torch_units() -> frozenset[str]:
    """What torch multiplies halves with: "bf16" and "f16" units, "amx", or "sums" in float32.

    The set is empty if torch converts value by value.
    """
    most = os.environ.get(TORCH_VARIABLE, "").upper()
    flags = _flags()
    units = {
        unit
        for flag, (unit, too_low) in _TORCH_UNITS.items()
        if flag in flags and most not in too_low
    }
    has_only_avx2 = "avx2" in flags and ("avx512bw" not in flags or most in _BELOW_AVX512)
    return frozenset(units if has_only_avx2 else {*units, "sums"})
