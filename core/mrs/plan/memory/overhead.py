"""Memory in addition to tensors: program, driver and the waste of allocators."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mrs.devices.device import Device
from mrs.kernels.workspace.attention import FLASHINFER_BYTES, FLASHINFER_LAYOUT_BYTES
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
        """Add term by term; a plain tuple would be concatenated."""
        if not isinstance(other, Estimate):
            return NotImplemented
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Estimate(0, 0, 0)

#: Resident memory of the process on a CPU before any weight is loaded: the interpreter, torch's
#: CPU build, its libraries and what importing them allocates.
#: Measured: 245 to 256 MiB with two threads on x86-64 under Linux.
PROGRAM = Estimate(215 * MIB, 248 * MIB, 268 * MIB)
#: The same with torch's CUDA build, which loads more libraries. Measured in the same way, without
#: a GPU: between 505 and 530 MiB with torch 2.11, 528 and 553 with 2.14, 549 and 575 with 2.15.
CUDA_PROGRAM = Estimate(480 * MIB, 545 * MIB, 590 * MIB)
#: What the CUDA driver, its libraries and Triton's compiler add to the process once a GPU is used.
#: Whole processes took 1,330 to 1,670 MiB on an H200 with 16 processors, staging buffers included.
CUDA_LIBRARIES = Estimate(200 * MIB, 700 * MIB, 1200 * MIB)
#: Bytes of the tokenizer per token of the vocabulary, merges included.
TOKEN_BYTES = Estimate(0, 600, 900)
#: Bytes of Python objects per parameter: its description, its matrix, its module.
PARAMETER_BYTES = Estimate(1000, 4000, 6000)
#: Bytes of the stack and buffers of a thread.
THREAD_BYTES = MIB
#: The heap does not return freed memory and cannot use every gap. It wastes at most these fractions
#: of the largest activations and of the KV cache, and a few blocks.
HEAP_GAPS, CACHE_GAPS, HEAP_BYTES = 0.7, 0.25, 8 * MIB

# What an NVIDIA GPU needs in addition to the tensors of a forward pass, as
# `python tests/bench/cuda_memory.py` measures each by its name.
#: A CUDA context with the kernels of one model: 107 to 555 MiB are reported over many cards, and
#: 695 MiB were measured on an H200 (CUDA 13.0), which has more processors than most.
CUDA_CONTEXT = Estimate(107 * MIB, 384 * MIB, 800 * MIB)
#: Workspace of the matrix library: 8 MiB, or 32 on the largest cards (measured on an H200).
CUDA_WORKSPACE = Estimate(8 * MIB, 16 * MIB, 32 * MIB)
#: Captured decode steps: their temporary memory, which no other step uses, the driver's copies of
#: their kernels' arguments, and the counts of tokens that sampling on the device needs. Assumed.
CUDA_GRAPHS = Estimate(0, 64 * MIB, 256 * MIB)
#: FlashInfer's buffers where that library is installed, for layers of one kind or two.
FLASHINFER = Estimate(
    FLASHINFER_BYTES,
    FLASHINFER_BYTES + FLASHINFER_LAYOUT_BYTES,
    FLASHINFER_BYTES + 2 * FLASHINFER_LAYOUT_BYTES,
)
#: The share of the largest activations that an accelerator's allocator loses, as it rounds blocks
#: up and cannot use every gap between them.
FRAGMENTATION = 0.25
#: Metal stores command buffers and compiled kernels. Not measured, so the bound is wide.
METAL_RUNTIME = Estimate(0, 64 * MIB, 256 * MIB)


def program_bytes(vocabulary: int, parameters: int, threads: int, has_cuda: bool) -> Estimate:
    """Resident memory of the process without weights, caches and activations."""
    program = CUDA_PROGRAM if has_cuda or _torch_has_cuda() else PROGRAM
    if has_cuda:
        program += CUDA_LIBRARIES
    model = model_objects_bytes(vocabulary, parameters)
    return program + model + Estimate(0, 0, threads * THREAD_BYTES)


def model_objects_bytes(vocabulary: int, parameters: int) -> Estimate:
    """The tokenizer and the Python objects of a model."""
    return Estimate(
        *(
            token * vocabulary + parameter * parameters
            for token, parameter in zip(TOKEN_BYTES, PARAMETER_BYTES, strict=True)
        )
    )


def heap_bytes(activation_bytes: int, kv_bytes: int) -> Estimate:
    """Waste of the C library's heap, in addition to the activations and caches in it."""
    most = int(HEAP_GAPS * activation_bytes + CACHE_GAPS * kv_bytes) + HEAP_BYTES
    return Estimate(0, most // 2, most)


@cache
def _torch_has_cuda() -> bool:
    """Whether the installed torch is built for CUDA, without importing it."""
    torch_spec = find_spec("torch")
    if torch_spec is None or torch_spec.origin is None:
        return False
    try:
        text = (Path(torch_spec.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return any(line.startswith("cuda") and "'" in line for line in text.splitlines())


@cache
def _has_flashinfer() -> bool:
    return find_spec("flashinfer") is not None


def runtime_bytes(device: Device) -> Estimate:
    """Memory of an accelerator's driver; nothing for a logical device on the CPU."""
    if device.torch_device == "cpu":
        return NOTHING
    if device.kind == "metal":
        return METAL_RUNTIME
    flashinfer = FLASHINFER if _has_flashinfer() else NOTHING
    return CUDA_CONTEXT + CUDA_WORKSPACE + CUDA_GRAPHS + flashinfer
