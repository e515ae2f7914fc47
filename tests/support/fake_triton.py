"""Triton kernels that compute nothing: they check that their tensors are on one GPU, without gaps.

Only caches, of four dimensions, come with their strides.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mrs.engine import engine_builder
from mrs.kernels import attention_backend, triton
from mrs.kernels.triton import paged_attention
from mrs.model import triton_blocks

#: The kernels of each file.
KERNELS = {
    "attention": ("attend_tiles",),
    "matmul": ("matmul_few_tokens", "matmul_many_tokens", "decode_rows"),
    "expert_products": ("expert_gates", "expert_sums"),
    "decode_products": ("joined_products", "gated_products", "rotate_and_write", "project_heads"),
}


class FakeKernel:
    """Remembers in `launches` the grid, and shapes and types of the arguments."""

    def __init__(self, name: str, launches: list[str]) -> None:
        self._name, self._launches = name, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
            assert len({x.device for x in tensors}) == 1
            assert tensors[0].device.type == "cuda"
            assert all(x.is_contiguous() for x in tensors if x.dim() < 4)
            spelled = [
                (x.dtype, *x.shape) if isinstance(x, Tensor) else x for x in tree_leaves(args)
            ]
            self._launches.append(f"{self._name} {grid} {spelled} {constants}")

        return launch


def use_fake_triton(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let GPUs have the kernels of decode steps; returns the list of all launches."""
    launches: list[str] = []
    for file_name, kernels in KERNELS.items():
        module = ModuleType(f"mrs.kernels.triton.{file_name}")
        for name in kernels:
            setattr(module, name, FakeKernel(name, launches))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(triton, file_name, module, raising=False)
    for user in (attention_backend, engine_builder):
        monkeypatch.setattr(user, "has_triton_attention", lambda device: True)
    for check in ("has_decode_blocks", "has_expert_blocks"):
        monkeypatch.setattr(triton_blocks, check, lambda device, layout: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    paged_attention._shared_counters.cache_clear()  # those of another fake GPU
    return launches
