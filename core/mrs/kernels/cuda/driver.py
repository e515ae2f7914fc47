"""Kernels of cubins, loaded and launched by the driver's interface through ctypes.

A launch goes to torch's current stream, so that a CUDA graph that torch captures has it, too.
https://docs.nvidia.com/cuda/cuda-driver-api/
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache

import torch

from mrs.errors import MrsError

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_SHARED_PERCENT_OF_CACHE = 9
_SHARED_BYTES_OF_MULTIPROCESSOR, _SHARED_BYTES_OF_BLOCK = 81, 97
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
#: The first architecture whose kernels may begin before the one before them is done.
_OVERLAPPING = (9, 0)


class DriverError(MrsError):
    """The driver is not there, or refused a call."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its value is a union of 64 bytes."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int * 16),
    )


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on a device, with the shared memory that its blocks use."""

    driver: ctypes.CDLL
    function: ctypes.c_void_p
    device: torch.device
    shared_bytes: int
    overlaps: bool

    def launch(self, grid: tuple[int, int, int], threads: int, task: ctypes.Structure) -> None:
        """Start the kernel, whose one parameter is `task`, on torch's current stream.

        It may start before the kernel before it is done. Raises DriverError.
        """
        attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[0] = 1
        stream = torch.cuda.current_stream(self.device).cuda_stream
        config = _Launch(
            grid,
            (threads, 1, 1),
            self.shared_bytes,
            stream,
            ctypes.pointer(attribute),
            int(self.overlaps),
        )
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(task))
        with torch.cuda.device(self.device):
            _require_done(
                self.driver,
                "cuLaunchKernelEx",
                ctypes.byref(config),
                self.function,
                parameters,
                None,
            )


def load_kernel(cubin: bytes, name: str, device: torch.device, shared_bytes: int) -> LoadedKernel:
    """The kernel `name` of a cubin, on a device that torch has begun to use. Raises DriverError."""
    found = _required_driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # torch makes the context that the module belongs to
        _require_done(found, "cuModuleLoadData", ctypes.byref(module), cubin)
        _require_done(found, "cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        for attribute, value in (
            (_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes),
            (_SHARED_PERCENT_OF_CACHE, 100),
        ):
            _require_done(found, "cuFuncSetAttribute", function, attribute, value)
    overlaps = torch.cuda.get_device_capability(device) >= _OVERLAPPING
    return LoadedKernel(found, function, device, shared_bytes, overlaps)


def shared_bytes(device: torch.device) -> tuple[int, int]:
    """The most shared memory of a block, and that of a multiprocessor. Raises DriverError."""
    found, number = _required_driver(), ctypes.c_int()
    _require_done(found, "cuInit", 0)
    _require_done(found, "cuDeviceGet", ctypes.byref(number), device.index or 0)
    sizes = []
    for attribute in (_SHARED_BYTES_OF_BLOCK, _SHARED_BYTES_OF_MULTIPROCESSOR):
        size = ctypes.c_int()
        _require_done(found, "cuDeviceGetAttribute", ctypes.byref(size), attribute, number)
        sizes.append(size.value)
    return sizes[0], sizes[1]


def _required_driver() -> ctypes.CDLL:
    found = driver()
    if found is None:
        raise DriverError("the library of the NVIDIA driver, libcuda, cannot be loaded")
    return found


@cache
def driver() -> ctypes.CDLL | None:
    """The driver's library; None where there is none."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def _require_done(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(library, function)(*arguments)
    if status != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else f"error {status}"
        raise DriverError(f"{function} of the NVIDIA driver failed: {said}")
