"""Where the kernels run, and with how much memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel, cubin_of
from mrs.kernels.cuda.driver import LoadedKernel, load_kernel, shared_bytes
from mrs.kernels.cuda.nvrtc import nvrtc
from mrs.kernels.workspace.fragments import COUNTERS

THREADS = 256
#: How the sources name the types of activations.
TYPES = {torch.float32: "Float32", torch.float16: "Float16", torch.bfloat16: "BFloat16"}


@dataclass(frozen=True)
class Limits:
    """An architecture, and its shared memory for a block and for all of a multiprocessor."""

    architecture: str
    block_bytes: int
    multiprocessor_bytes: int


class Launcher(Protocol):
    """Starts kernels of THREADS threads a block, in the order of torch's current stream."""

    limits: Limits
    counters: Tensor  # COUNTERS zeros, int32, which launches leave as they were

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared_bytes: int,
        task: ctypes.Structure,
    ) -> None: ...


class DeviceLauncher:
    """Launches kernels on one GPU, and compiles each when it is first needed."""

    def __init__(self, device: torch.device) -> None:
        """For a device with an index. Raises DriverError."""
        self.device = device
        architecture = architecture_of(*torch.cuda.get_device_capability(device))
        self.limits = Limits(architecture, *shared_bytes(device))
        self._kernels: dict[tuple[Kernel, int], LoadedKernel] = {}
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared_bytes: int,
        task: ctypes.Structure,
    ) -> None:
        """Start a kernel. Raises CompilerError and DriverError."""
        loaded = self._kernels.get((kernel, shared_bytes))
        if loaded is None:
            compiler = nvrtc()
            assert compiler is not None, "whoever makes this asks for `unavailable_reason` first"
            cubin = cubin_of(kernel, self.limits.architecture, compiler)
            loaded = load_kernel(cubin, kernel.name, self.device, shared_bytes)
            self._kernels[kernel, shared_bytes] = loaded
        loaded.launch(grid, THREADS, task)


def architecture_of(major: int, minor: int) -> str:
    """The architecture of a compute capability, with the features that it alone has, if any."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@cache
def device_launcher(device: torch.device) -> DeviceLauncher:
    """The one of a device."""
    return DeviceLauncher(device)
