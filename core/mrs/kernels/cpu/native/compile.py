"""Compile the native library with whatever C compiler there is. Standard library only.

`python -m mrs.kernels.cpu.native.compile` builds it in place, for a source tree that is used
without being installed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Where the library lies once it is built.
LIBRARY = Path(__file__).with_name("libmrs.dylib" if sys.platform == "darwin" else "libmrs.so")

_SOURCES = LIBRARY.parent
_FLAGS = [
    f"-I{_SOURCES}",
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
_AVX512 = [
    *_AVX2,
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    "-mprefer-vector-width=512",
]

#: Sources with the flags that they need beyond those of all, by processor.
_COMMON = {
    "api.c": [],
    "bounds.c": [],
    "elementwise.c": [],
    "experts.c": [],
    "program.c": [],
    "attention/attention.c": [],
    "attention/choice.c": [],
    "dense/dense.c": [],
    "gemm/pack_activations.c": [],
    "gemm/prefetch.c": [],
    "gemm/products.c": [],
    "recurrent/convolution.c": [],
    "recurrent/delta_rule.c": [],
    "recurrent/sequences.c": [],
    "recurrent/state_space.c": [],
    "runtime/read_ahead.c": [],
    "runtime/scratch.c": [],
    "runtime/threads.c": [],
    "isa/portable.c": ["-O2"],
}
_PROCESSOR = {
    "x86_64": {
        "isa/avx2.c": _AVX2,
        "isa/avx_vnni.c": _AVX2,
        "isa/amx.c": _AVX512,
        "isa/avx512.c": _AVX512,
    },
    "aarch64": {"isa/neon.c": ["-march=armv8.2-a+dotprod"]},
}
_OTHER_NAMES = {"AMD64": "x86_64", "arm64": "aarch64"}


class CannotCompile(Exception):
    """There is no C compiler, or it fails; the text says which."""


def compile_library(target: Path = LIBRARY, *more_flags: str) -> Path:
    """Compile and link the library as `target`; CannotCompile when that is impossible here."""
    compiler = _compiler()
    machine = _OTHER_NAMES.get(platform.machine(), platform.machine())
    sources = {**_COMMON, **_PROCESSOR.get(machine, {})}
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, source.replace("/", "_")).with_suffix(".o") for source in sources]
        commands = [
            [*compiler, *_FLAGS, *flags, *more_flags, "-c", str(_SOURCES / source), "-o", str(made)]
            for (source, flags), made in zip(sources.items(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        made = Path(folder, target.name)
        _run([*compiler, "-shared", *more_flags, *map(str, objects), "-pthread", "-o", str(made)])
        # A library that another process has loaded is replaced, never written over.
        beside = target.with_name(target.name + ".new")
        shutil.copyfile(made, beside)
        beside.replace(target)
    return target


def _compiler() -> list[str]:
    if sys.platform == "win32":
        raise CannotCompile("the native kernels are not built on Windows")
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise CannotCompile("no C compiler (cc, gcc or clang) was found")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompile(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        message = done.stderr.strip().splitlines() or ["no message"]
        raise CannotCompile(f"{command[0]} failed: {message[0]}")


if __name__ == "__main__":
    print(compile_library())
