"""What a device holds besides tensors: the program or the driver, and what allocators waste."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mrs.devices.device import Device
from mrs.units import MIB


class Estimate(NamedTuple):
    """Bytes: at least, most likely, and at most."""

    low: int
    expected: int
    high: int

    @classmethod
    def exact(cls, size_bytes: int) -> Estimate:
        return cls(size_bytes, size_bytes, size_bytes)

    def __add__(self, other: object) -> Estimate:
        """Term by term, not as tuples are joined."""
        if not isinstance(other, Estimate):
            return NotImplemented
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Estimate(0, 0, 0)

#: What the process itself takes on a CPU before any weight is there: the interpreter, torch's CPU
#: build, its libraries and what importing them allocates, as the system counts resident memory.
#: Measured: 245 to 256 MiB with two threads on x86-64 under Linux.
PROGRAM = Estimate(215 * MIB, 248 * MIB, 268 * MIB)
#: The same with a build of torch for CUDA, which brings further libraries. Not measured.
CUDA_PROGRAM = Estimate(215 * MIB, 600 * MIB, 1500 * MIB)
#: Bytes of tokenizer for a token of the vocabulary, of which a tokenizer file has merges, too.
TOKEN_BYTES = Estimate(0, 600, 900)
#: Bytes of Python objects for a parameter: its description, its matrix, its part in a layer.
PARAMETER_BYTES = Estimate(1000, 4000, 6000)
#: Bytes of a thread's stack and buffers.
THREAD_BYTES = MIB
#: The heap keeps what is freed for the next use, and cannot use every gap: this part of the
#: largest activations and of the KV cache, at most, and a few blocks.
HEAP_GAPS, CACHE_GAPS, HEAP_BYTES = 0.7, 0.25, 8 * MIB
#: An accelerator's allocator rounds blocks up and cannot use every gap between them.
FRAGMENTATION = 0.25

#: A CUDA context with the kernels of one model: 107 to 555 MiB are reported over many cards, and
#: the matrix library's workspace adds 8 MiB, or 32 on the largest ones.
CUDA_CONTEXT = Estimate(107 * MIB + 8 * MIB, 400 * MIB, 555 * MIB + 32 * MIB)
#: Metal keeps command buffers and compiled kernels; nothing was measured, so the bound is wide.
METAL_RUNTIME = Estimate(0, 64 * MIB, 256 * MIB)


def program_bytes(vocabulary: int, parameters: int, threads: int) -> Estimate:
    """Resident memory of the process without weights, caches and activations."""
    program = CUDA_PROGRAM if _torch_has_cuda() else PROGRAM
    model = [
        token * vocabulary + parameter * parameters
        for token, parameter in zip(TOKEN_BYTES, PARAMETER_BYTES, strict=True)
    ]
    return program + Estimate(*model) + Estimate(0, 0, threads * THREAD_BYTES)


def heap_bytes(activation_bytes: int, kv_bytes: int) -> Estimate:
    """What the C library's heap takes besides the activations and caches that lie in it."""
    most = int(HEAP_GAPS * activation_bytes + CACHE_GAPS * kv_bytes) + HEAP_BYTES
    return Estimate(0, most // 2, most)


@cache
def _torch_has_cuda() -> bool:
    """Whether the installed torch is built for CUDA, without importing it."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return any(line.startswith("cuda") and "'" in line for line in text.splitlines())


def runtime_bytes(device: Device) -> Estimate:
    """What the driver takes of an accelerator's memory; nothing of one that stands for the CPU."""
    if device.torch_device == "cpu":
        return NOTHING
    return METAL_RUNTIME if device.kind == "metal" else CUDA_CONTEXT
