"""NVRTC, NVIDIA's compiler of CUDA C++ at run time: from source to the code of one architecture.

It needs neither a GPU nor a driver. https://docs.nvidia.com/cuda/nvrtc/
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from mrs.errors import MrsError

#: Where CUDA itself is installed, if no package brings the library.
_TOOLKITS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib")
_NAMES = "nvrtc64_*_0.dll" if sys.platform == "win32" else "libnvrtc.so.*"


class CompilerError(MrsError):
    """NVRTC refused a kernel, or failed."""


class Nvrtc:
    """The loaded library; `version` as (major, minor)."""

    def __init__(self, path: Path) -> None:
        """Load the library. Raises OSError where it cannot be."""
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value

    def compile(
        self,
        name: str,
        source: bytes,
        headers: Mapping[str, bytes],
        architecture: str,
        options: Sequence[str] = (),
    ) -> tuple[bytes, str]:
        """The cubin of a source for an architecture such as `sm_90a`, and what the compiler said.

        `headers` are those that the source may include, by their names. Raises CompilerError.
        """
        flags = [f"--gpu-architecture={architecture}", "--std=c++17", *options]
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source,
            name.encode(),
            len(headers),
            _strings(list(headers.values())),
            _strings([each.encode() for each in headers]),
        )
        try:
            texts = _strings([flag.encode() for flag in flags])
            status = self._library.nvrtcCompileProgram(program, len(flags), texts)
            log = self._bytes_of("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status != 0:
                raise CompilerError(
                    f"NVRTC cannot compile {name} for {architecture}: {log.strip()}"
                )
            return self._bytes_of("CUBIN", program), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes_of(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        found = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, found)
        return found.raw

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            text = self._library.nvrtcGetErrorString(status).decode()
            raise CompilerError(f"{function} of NVRTC failed: {text}")


def _strings(values: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*values)


@cache
def nvrtc() -> Nvrtc | None:
    """NVRTC of this machine; None if none can be loaded."""
    for path in library_paths():
        try:
            return Nvrtc(path)
        except (OSError, CompilerError, AttributeError):
            continue
    return None


def library_paths() -> list[Path]:
    """Where the library lies: in packages of NVIDIA, and then in the toolkit.

    That of torch's own CUDA comes first, whose code the driver can load; then the newest.
    """
    spec = find_spec("nvidia")  # a namespace: of `nvidia-cuda-nvrtc` and others
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    packages = [path for root in roots for path in root.glob(f"*/[lb]i[bn]/{_NAMES}")]
    packages += [path for root in roots for path in root.glob(f"*/bin/*/{_NAMES}")]
    toolkit = [path for folder in _TOOLKITS for path in Path(folder).glob(_NAMES)]
    return [path for found in (packages, toolkit) for path in sorted(found, key=_rank)]


def _rank(path: Path) -> tuple[bool, list[int]]:
    """Of a name such as `libnvrtc.so.13` or `nvrtc64_130_0.dll`; the lowest is the best."""
    digits = "".join(c if c.isdigit() else " " for c in path.name.removeprefix("nvrtc64"))
    numbers = [int(number) for number in digits.split()] or [0]
    if sys.platform == "win32":
        numbers[0] //= 10
    own = (torch.version.cuda or "").partition(".")[0]
    return own != str(numbers[0]), [-number for number in numbers]
