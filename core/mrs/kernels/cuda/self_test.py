"""A test of the CUDA kernels on a GPU, to be run before they are used."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cuda.driver import driver
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.cuda.nvrtc import nvrtc
from mrs.kernels.cuda.products import (
    MOST_TOKENS,
    Launcher,
    device_launcher,
    multiply,
    prepare,
)
from mrs.kernels.triton.bit_planes import BlockFields, PlaneLayout
from mrs.kernels.triton.self_test import worst_of

#: `mma` of bf16, and copies that a thread does not wait for.
_CAPABILITY = (8, 0)
#: Relative. Weights and activations are exact; of sums, the matrix units cut off what float32
#: cannot hold. Rounding to bf16 alone causes an error of 1.5e-3.
LARGEST_ERROR = 5e-5
ROWS, COLUMNS = 272, 1280
_TOKENS = (1, 9, 20, MOST_TOKENS)


def missing_reason(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device; None if it is worth trying."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "it is no NVIDIA GPU"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "the GPU is older than Ampere"
    if nvrtc() is None:
        return "NVIDIA's compiler NVRTC is not installed"
    if driver() is None:
        return "the library of the NVIDIA driver cannot be loaded"
    return None


def unavailable_reason(device: torch.device, layouts: dict[str, PlaneLayout]) -> str | None:
    """Why the kernels cannot multiply matrices of these formats on a device; None if they can."""
    if (reason := missing_reason(device)) is not None:
        return reason
    try:
        launcher = device_launcher(device)
        worst = worst_of(
            largest_error(name, layout, device, launcher) for name, layout in layouts.items()
        )
    except Exception as error:  # noqa: BLE001 - a compiler or driver can raise anything
        first_line = str(error).partition("\n")[0]
        return f"the CUDA kernels failed with {type(error).__name__}: {first_line}"
    if not worst <= LARGEST_ERROR:
        return f"products of the CUDA kernels have an error of {worst:.1e}"
    return None


def largest_error(
    name: str, layout: PlaneLayout | None, device: torch.device, launcher: Launcher
) -> float:
    """The largest relative error of products of random weights, compared with float64.

    It is infinite if a token has other bits beside others than in the largest number of tokens.
    Without a layout the weights are bf16.
    """
    generator = torch.Generator().manual_seed(0)
    matrix, weights = random_matrix(name, layout, ROWS, COLUMNS, device, generator)
    x = torch.randn(MOST_TOKENS, COLUMNS, generator=generator).bfloat16().to(device)
    expected = x.double() @ weights.double().T
    all_tokens, errors = None, []
    for count in reversed(_TOKENS):
        prepared = prepare(x[-count:], launcher, is_bf16=layout is None)
        found = multiply(prepared, [matrix], launcher, torch.float32)
        if all_tokens is None:
            all_tokens = found
        is_same = torch.equal(found, all_tokens[-count:])
        wanted = expected[-count:]
        error = float((found.double() - wanted).norm() / wanted.norm())
        errors.append(error if is_same else float("inf"))
    return worst_of(errors)


def random_matrix(
    name: str,
    layout: PlaneLayout | None,
    rows: int,
    columns: int,
    device: torch.device,
    generator: torch.Generator,
) -> tuple[FragmentMatrix | Tensor, Tensor]:
    """A matrix with every code, scale and minimum, and its weights (rows, columns)."""
    if layout is None:
        dense = torch.randn(rows, columns, generator=generator).bfloat16().to(device)
        return dense, dense

    def integers(count: int, bits: int) -> Tensor:
        return torch.randint(0, 1 << bits, (rows, count), generator=generator).byte().to(device)

    d = torch.rand(rows, columns // layout.block, generator=generator).to(device, torch.float16)
    groups = columns // layout.sub_block if layout.scale_bits else 0
    fields = BlockFields(
        integers(columns, layout.code_bits),
        d,
        -d if layout.has_base else None,
        integers(groups, layout.scale_bits) if groups else None,
        integers(groups, layout.scale_bits) if groups and layout.has_base else None,
    )
    matrix = FragmentMatrix(name, layout, rows, columns, device)
    matrix.fill(fields)
    return matrix, matrix.rows(torch.arange(rows, device=device), torch.float32)
