"""Whether the Triton kernels work on a GPU: they are tried before weights are laid out for them."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from mrs.kernels.triton.bit_planes import Fields, PlaneLayout
from mrs.kernels.triton.plane_matrix import FEW_TOKENS, PlaneMatrix

#: Triton has no matrix units of older NVIDIA GPUs to offer.
_CAPABILITY = (8, 0)

#: bf16 results are off by 0.15 % as it is.
LARGEST_ERROR = 5e-3

#: Both ways that scales can be kept, with every kind of plane.
LAYOUTS = (
    PlaneLayout(32, code_bits=5, code_zero=16, has_base=True),
    PlaneLayout(256, code_bits=6, code_zero=32, has_base=True, run=16, scale_bits=6),
)


def triton_unavailable_reason(device: torch.device) -> str | None:
    """Why the kernels cannot be used on a GPU, or None where they can.

    They multiply two small matrices, which compiles them for the sizes that are most used, and
    are compared with decoded weights.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "Triton has no matrix products for this GPU"
    try:
        worst = max(largest_error(layout, device) for layout in LAYOUTS)
    except Exception as error:  # noqa: BLE001 - of a compiler or driver; there is another way
        first_line = str(error).partition("\n")[0]
        return f"Triton failed with {type(error).__name__}: {first_line}"
    if not worst <= LARGEST_ERROR:
        return f"Triton's products are off by {100 * worst:.1f} %"
    return None


def largest_error(layout: PlaneLayout, device: torch.device) -> float:
    """Of products of one token and of many with random weights, relative to their size."""
    rows, columns = 64, 512
    generator = torch.Generator().manual_seed(0)

    def numbers(count: int, bits: int) -> torch.Tensor:
        return torch.randint(0, 1 << bits, (rows, count), generator=generator).byte().to(device)

    halves = torch.rand(rows, columns // layout.block, generator=generator).half().to(device)
    runs = columns // layout.run if layout.scale_bits else 0
    fields = Fields(
        numbers(columns, layout.code_bits),
        halves,
        -halves,
        numbers(runs, layout.scale_bits) if runs else None,
        numbers(runs, layout.scale_bits) if runs else None,
    )
    matrix = PlaneMatrix(layout, rows, columns, device)
    matrix.fill(fields)
    weights = matrix.rows(torch.arange(rows, device=device), torch.float32)
    errors = []
    for tokens in (1, 16 * FEW_TOKENS):
        x = torch.randn(tokens, columns, generator=generator).bfloat16().to(device)
        expected = x.float() @ weights.T
        errors.append(float((matrix.matmul(x).float() - expected).norm() / expected.norm()))
    return max(errors)
