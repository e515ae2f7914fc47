"""Triton kernels that compute nothing: they check that their tensors are on one GPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from mrs.engine import engine_builder
from mrs.kernels import attention_backend


class FakeKernel:
    """Remembers in `launches` the grid, and shapes and types of the arguments."""

    def __init__(self, name: str, launches: list[str]) -> None:
        self._name, self._launches = name, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            tensors = [x for x in args if isinstance(x, Tensor)]
            assert len({x.device for x in tensors}) == 1
            assert tensors[0].device.type == "cuda"
            spelled = [(x.dtype, *x.shape) if isinstance(x, Tensor) else x for x in args]
            self._launches.append(f"{self._name} {grid} {spelled} {constants}")

        return launch


def use_fake_triton(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let GPUs have the attention kernels; returns the list of all launches."""
    launches: list[str] = []
    module = ModuleType("mrs.kernels.triton.attention")
    for name in ("attend_tiles", "combine_splits"):
        setattr(module, name, FakeKernel(name, launches))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for user in (attention_backend, engine_builder):
        monkeypatch.setattr(user, "has_triton_attention", lambda device: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return launches
