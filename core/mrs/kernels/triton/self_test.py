"""A test of the Triton kernels on a GPU, run before weights are stored in their layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.util import find_spec

import torch

from mrs.devices.gpu_path import gpu_path
from mrs.devices.variables import GPU_PATH_VARIABLE
from mrs.kernels.triton.bit_planes import BlockFields, PlaneLayout, decode_rows
from mrs.kernels.triton.plane_matrix import FEW_TOKENS, PlaneMatrix

_logger = logging.getLogger(__name__)

#: Triton does not support the matrix units of older NVIDIA GPUs.
_CAPABILITY = (8, 0)

#: Relative; rounding to bf16 alone causes an error of 0.15 %.
LARGEST_ERROR = 5e-3

#: Without and with integer scales: together they have every kind of plane of GGUF's integers.
LAYOUTS = (
    PlaneLayout(32, code_bits=5, code_zero=16, has_base=True).for_columns(256),
    PlaneLayout(256, code_bits=6, code_zero=32, has_base=True, sub_block=16, scale_bits=6),
)


def layouts_to_check(layout: PlaneLayout) -> tuple[PlaneLayout, ...]:
    """The layouts that show whether the kernels are right for this one."""
    return (layout,) if layout.is_float or layout.is_wide else LAYOUTS


def triton_missing_reason(device: torch.device) -> str | None:
    """Why no Triton kernel can be used on a GPU; None if it is worth trying."""
    if gpu_path() == "torch":
        return f"{GPU_PATH_VARIABLE} is torch"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "Triton does not support matrix products on this GPU"
    return None


def products_unavailable_reason(
    device: torch.device, layouts: tuple[PlaneLayout, ...] = LAYOUTS
) -> str | None:
    """Why the kernels cannot multiply matrices of these layouts on a GPU; None if they can.

    Multiplies two small matrices, which also compiles the kernels for the most common sizes, and
    compares the results with products of the decoded weights.
    """
    if (reason := triton_missing_reason(device)) is not None:
        return reason
    try:
        worst = worst_of(largest_error(layout, device) for layout in layouts)
    except Exception as error:  # noqa: BLE001 - a compiler or driver can raise anything
        first_line = str(error).partition("\n")[0]
        return f"Triton failed with {type(error).__name__}: {first_line}"
    if not worst <= LARGEST_ERROR:
        return f"Triton's products have an error of {100 * worst:.1f} %"
    return None


def is_right(
    device: torch.device,
    error_of: Callable[[torch.device], float],
    most: float,
    otherwise: str,
    who: str = "Triton",
) -> bool:
    """Whether kernels run on a GPU with an error of at most `most`.

    If not, it warns that `otherwise`, as `who` failed or is wrong.
    """
    try:
        error = error_of(device)
    except Exception as failure:  # noqa: BLE001 - a compiler or driver can raise anything
        first_line = str(failure).partition("\n")[0]
        _logger.warning("%s: %s, as %s failed: %s", device, otherwise, who, first_line)
        return False
    if not error <= most:
        _logger.warning("%s: %s, as %s has an error of %g", device, otherwise, who, error)
        return False
    return True


def largest_error(layout: PlaneLayout, device: torch.device) -> float:
    """The largest relative error of decoding random weights, and of products with a token and many.

    They are compared with what torch decodes.
    """
    rows, columns = 64, 512
    generator = torch.Generator().manual_seed(0)
    matrix = random_matrix(layout, rows, columns, device, generator)
    ids = torch.arange(rows, device=device)
    weights = decode_rows(layout, matrix.planes, ids)
    decoded = matrix.decode_in_one_launch(ids, torch.float32)
    errors = [float((decoded - weights).norm() / weights.norm())]
    for tokens in (1, 16 * FEW_TOKENS):
        x = torch.randn(tokens, columns, generator=generator).bfloat16().to(device)
        expected = x.float() @ weights.T
        errors.append(float((matrix.matmul(x).float() - expected).norm() / expected.norm()))
    return worst_of(errors)


def random_matrix(
    layout: PlaneLayout, rows: int, columns: int, device: torch.device, generator: torch.Generator
) -> PlaneMatrix:
    """A matrix with every code, scale and minimum that the layout knows."""

    def integers(count: int, bits: int) -> torch.Tensor:
        return torch.randint(0, 1 << bits, (rows, count), generator=generator).byte().to(device)

    blocks = columns // layout.block
    if layout.d_type == torch.uint8:
        d = integers(blocks, 3) + 120
    else:
        d = torch.rand(rows, blocks, generator=generator).to(device, layout.d_type)
    groups = columns // layout.sub_block if layout.scale_bits else 0
    fields = BlockFields(
        integers(columns, layout.code_bits),
        d,
        -d if layout.has_base else None,
        integers(groups, layout.scale_bits) if groups else None,
        integers(groups, layout.scale_bits) if groups else None,
    )
    matrix = PlaneMatrix(layout, rows, columns, device)
    matrix.fill(fields)
    return matrix


def worst_of(errors: Iterable[float]) -> float:
    """The largest error; NaN if one is NaN, which `max` may pass over."""
    return float(torch.tensor([*errors], dtype=torch.float64).max())
