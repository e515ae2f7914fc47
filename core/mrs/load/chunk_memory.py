"""The memory that chunks of files are read into, on their way to a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class ChunkMemory(Protocol):
    """Memory that one chunk after another is read into."""

    def take(self, size_bytes: int) -> Tensor:
        """uint8 (size_bytes,), undefined; what was taken before it is no longer valid."""

    def close(self) -> None:
        """Give the memory back. Chunks were used up, and copies from them have ended."""


class OneBuffer:
    """One buffer for all chunks: separate memory for each would fragment the heap."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, size_bytes: int) -> Tensor:
        if self._memory.nbytes < size_bytes:
            self._memory = torch.empty(size_bytes, dtype=torch.uint8)
        return self._memory[:size_bytes]

    def close(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)


@dataclass
class _Pinned:
    """`copied` are events after the last copies from the memory, one for each GPU."""

    memory: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    copied: list[torch.cuda.Event] = field(default_factory=list)

    def wait(self) -> None:
        for event in self.copied:
            event.synchronize()
        self.copied.clear()


class PinnedBuffers:
    """Two buffers that the system cannot move: GPUs copy one while a file is read into the other.

    Copies must be asked for with `non_blocking`, on the current stream of their GPU.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._gpus = {device for device in devices if device.type == "cuda"}
        self._last, self._next = _Pinned(), _Pinned()

    def take(self, size_bytes: int) -> Tensor:
        """As of a `ChunkMemory`. Copies from the chunk before may still go on, and stay right."""
        self._last.copied = [torch.cuda.current_stream(gpu).record_event() for gpu in self._gpus]
        self._last, self._next = self._next, self._last
        self._last.wait()
        if self._last.memory.nbytes < size_bytes:
            self._last.memory = _pinned(size_bytes)
        return self._last.memory[:size_bytes]

    def close(self) -> None:
        for gpu in self._gpus:
            torch.cuda.current_stream(gpu).synchronize()
        self._last, self._next = _Pinned(), _Pinned()
        _empty_host_cache()  # torch would keep the memory for itself


def _empty_host_cache() -> None:
    """Give pinned memory that nothing uses back; torch 2.11 has only a private function for it."""
    private = getattr(torch._C, "_host_emptyCache", None)
    (private or torch.accelerator.empty_host_cache)()


def chunk_memory(devices: Iterable[torch.device]) -> ChunkMemory:
    """Memory for chunks that go to these devices: pinned if NVIDIA GPUs are among them."""
    kinds = set(devices)
    has_gpu = any(device.type == "cuda" for device in kinds) and torch.cuda.is_available()
    return PinnedBuffers(kinds) if has_gpu else OneBuffer()


def _pinned(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
