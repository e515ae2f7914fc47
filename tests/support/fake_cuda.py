"""CUDA kernels on a GPU that is not there: they compute nothing, and their launches are counted."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mrs.kernels.cuda import fragment_matrix
from mrs.kernels.cuda.cubins import Kernel
from mrs.kernels.workspace.fragments import COUNTERS
from mrs.model import cuda_operations
from mrs.quantization import targets
from support.emulated_gpu import LIMITS


class FakeLauncher:
    """Of an H100; remembers in `launches` the kernel and the grid."""

    def __init__(self, device: torch.device, launches: list[str]) -> None:
        self.limits = LIMITS[90]
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        self._launches = launches

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared_bytes: int,
        task: ctypes.Structure,
    ) -> None:
        assert min(grid) > 0
        assert max(grid[1:]) < 1 << 16
        assert shared_bytes <= self.limits.block_bytes
        self._launches.append(f"{kernel.name} {grid} {kernel.options}")


def use_fake_cuda(monkeypatch: pytest.MonkeyPatch, launches: list[str]) -> None:
    """Let GPUs have the CUDA kernels, for matrices that are loaded from now on."""
    known: dict[torch.device, FakeLauncher] = {}

    def launcher(device: torch.device) -> FakeLauncher:
        if device not in known:
            known[device] = FakeLauncher(device, launches)
        return known[device]

    for user in (cuda_operations, fragment_matrix):
        monkeypatch.setattr(user, "device_launcher", launcher)
    for name in ("has_cuda_products", "has_cuda_rows"):
        monkeypatch.setattr(cuda_operations, name, lambda device, *_: device.type == "cuda")
    monkeypatch.setattr(targets, "has_cuda_products", lambda device, _: device.type == "cuda")
