"""Which instructions of the CPU are used: the path of our kernels, and the units of torch.

The kernels and the plan both ask here, so that a plan describes the path that runs.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from mrs.errors import UsageError

#: Names a lower path than the best: one of `PATH_NAMES` that the processor can run.
PATH_VARIABLE = "MRS_CPU_PATH"

#: What the paths are called in front of people, best first.
PATH_NAMES = {
    "amx": "native AVX-512 VNNI AMX",
    "avx512_bf16": "native AVX-512 VNNI BF16",
    "avx512": "native AVX-512 VNNI",
    "avx2": "native AVX2",
    "neon": "native NEON",
    "portable": "native C",
    "torch": "torch",
}

_AVX2 = frozenset(("avx2", "fma", "f16c", "bmi2"))
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_BF16 = _AVX512 | {"avx512_bf16"}
#: What a path needs, as the flags of /proc/cpuinfo are called.
_NEEDED: dict[str, frozenset[str]] = {
    "amx": _BF16 | {"amx_tile", "amx_bf16"},
    "avx512_bf16": _BF16,
    "avx512": _AVX512,
    "avx2": _AVX2,
    "neon": frozenset(("asimddp",)),
    "portable": frozenset(),
    "torch": frozenset(),
}

#: The variable by which oneDNN, torch's library of products, is kept to lower instructions, and
#: of those that multiply halves the values that still allow them.
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
    """What the first processor can do; every Mac that torch runs on has the same."""
    if sys.platform == "darwin":
        return frozenset(("asimddp",)) if platform.machine() == "arm64" else frozenset()
    try:
        with cpuinfo.open(errors="replace") as lines:
            found = (line.split() for line in lines if line.startswith(("flags", "Features")))
            return frozenset(next(found, []))
    except OSError:
        return frozenset()


def cpu_paths() -> list[str]:
    """The paths that this processor can run, best first; "torch" is the last."""
    return [path for path, needed in _NEEDED.items() if needed <= _flags()]


def cpu_path() -> str:
    """The path that the environment asks for, or the best; UsageError where there is none such."""
    paths = cpu_paths()
    wanted = os.environ.get(PATH_VARIABLE) or paths[0]
    if wanted not in paths:
        raise UsageError(
            f"this processor cannot run {PATH_VARIABLE}={wanted}",
            hint=f"it has {', '.join(paths)}",
        )
    return wanted


def torch_units() -> frozenset[str]:
    """With what torch multiplies halves: "bf16" and "f16" units, "amx", or "sums" in float32.

    Nothing of these is there where it converts number by number.
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
