"""Compile the native library with whatever C compiler there is. Standard library only.

`python -m mrs.kernels.cpu.native.compile` builds it in place, for a source tree that is used
without being installed.
"""

from __future__ import annotations

import os
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
    "-g0",  # zig adds debugging information that is six times the library's size
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
_AVX512 = [
    *_AVX2,
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    "-mprefer-vector-width=512",
]

#: Sources with the flags that they need beyond those of all.
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
#: Flags of GCC that clang has by another name: that of zig knows processors, no architectures.
_CLANG = {"-march=armv8.2-a+dotprod": "-mcpu=generic+dotprod"}
#: Those of each processor besides, by the name that Linux has for it.
_PROCESSOR = {
    "x86_64": {
        "isa/avx2.c": _AVX2,
        "isa/avx_vnni.c": _AVX2,
        "isa/amx.c": _AVX512,
        "isa/avx512.c": _AVX512,
    },
    "aarch64": {"isa/neon.c": ["-march=armv8.2-a+dotprod"]},
}


class CannotCompile(Exception):
    """There is no C compiler, or it fails; the text says which."""


def compile_library(target: Path = LIBRARY, *more_flags: str) -> Path:
    """Compile and link the library as `target`; CannotCompile when that is impossible here."""
    compiler = _compiler()
    macros = _macros(compiler)
    sources = {**_COMMON, **_PROCESSOR.get(_processor(macros) or "", {})}
    names = _CLANG if "#define __clang__ 1\n" in macros else {}
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, source.replace("/", "_")).with_suffix(".o") for source in sources]
        commands = [
            [
                *(*compiler, *_FLAGS, *(names.get(flag, flag) for flag in flags), *more_flags),
                *("-c", str(_SOURCES / source), "-o", str(made)),
            ]
            for (source, flags), made in zip(sources.items(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for source, _ in zip(sources, pool.map(_run, commands), strict=True):
                # pip shows that it works only while what it runs writes something.
                print(f"compiled {source}", file=sys.stderr, flush=True)
        made = Path(folder, target.name)
        _run([*compiler, "-shared", *more_flags, *map(str, objects), "-pthread", "-o", str(made)])
        # A library that another process has loaded is replaced, never written over.
        beside = target.with_name(target.name + ".new")
        shutil.copyfile(made, beside)
        beside.replace(target)
    return target


def target_processor() -> str | None:
    """The processor of `_PROCESSOR` that the library is for: `CC` may compile for another one.

    None if it is not among them; CannotCompile without a compiler.
    """
    return _processor(_macros(_compiler()))


def _processor(macros: str) -> str | None:
    return next((name for name in _PROCESSOR if f"#define __{name}__ 1\n" in macros), None)


def _macros(compiler: list[str]) -> str:
    return _run([*compiler, "-dM", "-E", "-x", "c", os.devnull])


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


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompile(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        message = done.stderr.strip().splitlines() or ["no message"]
        raise CannotCompile(f"{command[0]} failed: {message[0]}")
    return done.stdout


if __name__ == "__main__":
    print(compile_library())
