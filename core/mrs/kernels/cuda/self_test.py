"""A test of the CUDA kernels on a GPU, to be run before they are used."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.kernels.cuda.decode import decode_panel
from mrs.kernels.cuda.driver import driver
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.cuda.launcher import Launcher, device_launcher
from mrs.kernels.cuda.nvrtc import nvrtc
from mrs.kernels.cuda.products import multiply
from mrs.kernels.cuda.routing import RouterWeights, RoutingRule, route
from mrs.kernels.cuda.rows import Heads, normalize, rotate_and_write
from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import PagedKV
from mrs.kernels.rotate import rotate
from mrs.kernels.triton.bit_planes import BlockFields, PlaneLayout
from mrs.kernels.triton.self_test import worst_of
from mrs.kernels.workspace.fragments import MOST_TOKENS

#: `mma` of bf16, and copies that a thread does not wait for.
_CAPABILITY = (8, 0)
#: Relative; rounding to bf16 alone causes an error of 1.7e-3.
LARGEST_ROW_ERROR = 4e-3
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


def unavailable_reason(device: torch.device, layouts: dict[str, PlaneLayout | None]) -> str | None:
    """Why the kernels cannot multiply matrices of these formats on a device; None if they can.

    BF16 has no layout.
    """
    return missing_reason(device) or _reason(
        device,
        "products",
        lambda launcher: worst_of(
            largest_error(name, layout, device, launcher) for name, layout in layouts.items()
        ),
        LARGEST_ERROR,
    )


def row_reason(device: torch.device) -> str | None:
    """Why the kernels cannot norm, rotate and route rows on a device; None if they can."""
    return missing_reason(device) or _reason(
        device, "rows", lambda launcher: row_error(device, launcher), LARGEST_ROW_ERROR
    )


def _reason(
    device: torch.device, what: str, error_of: Callable[[Launcher], float], most: float
) -> str | None:
    try:
        error = error_of(device_launcher(device))
    except Exception as failure:  # noqa: BLE001 - a compiler or driver can raise anything
        first_line = str(failure).partition("\n")[0]
        return f"the CUDA kernels failed with {type(failure).__name__}: {first_line}"
    return None if error <= most else f"{what} of the CUDA kernels have an error of {error:.1e}"


def row_error(device: torch.device, launcher: Launcher) -> float:
    """The largest relative error of norms, rotated heads and a choice of experts.

    They are compared with what torch computes.
    """
    generator = torch.Generator().manual_seed(0)

    def floats(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    tokens, heads, kv_heads, dim = 3, 6, 3, 80
    x, weight = floats(tokens, COLUMNS).bfloat16(), floats(COLUMNS)
    wanted = rms_norm(x.double().float(), weight, 1e-5) + x.float()
    errors = [_error(normalize(x, weight, 1e-5, launcher, x), wanted.double())]
    qkv, norms = floats(tokens, (heads + 2 * kv_heads) * dim).bfloat16(), floats(2, dim)
    angles = floats(tokens, dim // 2 - 8)
    slots = torch.tensor([17, 3, 40], device=device)
    for is_interleaved in (False, True):
        kv = PagedKV(kv_heads, dim, dim, block_tokens=16, dtype=torch.bfloat16, device=device)
        kv.resize(3)
        shape = Heads(heads, kv_heads, dim, is_interleaved, norms, 1e-5)
        q = rotate_and_write(qkv, (angles.cos(), angles.sin()), shape, slots, kv, launcher)
        all_heads = qkv.float().view(tokens, -1, dim)
        parts = torch.split(all_heads, [heads, kv_heads, kv_heads], 1)
        rotated = [
            rotate(
                rms_norm(part, norm, 1e-5),
                angles.cos(),
                angles.sin(),
                interleaved=is_interleaved,
            )
            for part, norm in zip(parts[:2], norms, strict=True)
        ]
        blocks, offsets = slots // 16, slots % 16
        found = [kv.keys[blocks, :, offsets], kv.values[blocks, :, offsets]]
        errors.append(_error(q.view(tokens, heads, dim), rotated[0].double()))
        errors.append(_error(found[0], rotated[1].double()))
        errors.append(_error(found[1], parts[2].double()))
    rows, bias, correction, factors = floats(20, COLUMNS), *(floats(20) for _ in range(3))
    router = RouterWeights(rows, bias, correction, factors)
    how = RoutingRule(top_k=5, scale=2.5, is_sigmoid=False, sums_to_one=True)
    normed, chances, indices = route(x, router, how, launcher, norm=weight, eps=1e-5)
    wanted = rms_norm(x.float(), weight, 1e-5)
    scores = (wanted @ rows.T + bias).softmax(-1)
    best = (scores + correction).topk(5).indices
    of_best = scores.gather(-1, best)
    of_best = of_best / of_best.sum(-1, keepdim=True) * factors[best] * how.scale
    errors.append(_error(normed, wanted.double()))
    errors.append(_error(chances, of_best.double()))
    errors.append(0.0 if torch.equal(indices, best) else float("inf"))
    return worst_of(errors)


def largest_error(
    name: str, layout: PlaneLayout | None, device: torch.device, launcher: Launcher
) -> float:
    """The largest relative error of random weights and their products, compared with float64.

    It is infinite if a token has other bits beside others than in the largest number of tokens.
    Without a layout the weights are bf16.
    """
    generator = torch.Generator().manual_seed(0)
    matrix, weights = random_matrix(name, layout, ROWS, COLUMNS, device, generator, launcher)
    x = torch.randn(MOST_TOKENS, COLUMNS, generator=generator).bfloat16().to(device)
    expected = x.double() @ weights.double().T
    all_tokens, errors = None, []
    if isinstance(matrix, FragmentMatrix):
        ids = torch.arange(ROWS - 1, -1, -1, device=device)
        errors.append(_error(matrix.rows(ids, torch.float32).flip(0), weights.double()))
        panel = torch.empty_like(weights)
        decode_panel(name, matrix.data, 0, panel, launcher)
        errors.append(_error(panel, weights.double()))
    for count in reversed(_TOKENS):
        found = multiply(x[-count:], [matrix], launcher, dtype=torch.float32)
        if all_tokens is None:
            all_tokens = found
        is_same = torch.equal(found, all_tokens[-count:])
        errors.append(_error(found, expected[-count:]) if is_same else float("inf"))
    # Both rounds of a gate, behind a norm of powers of two, which needs no rounding.
    norm = torch.tensor([0.5, 1.0, 2.0, 1.0], device=device).repeat(COLUMNS // 4)
    x = x[: _TOKENS[1]]
    root = (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    product = (x.double() * norm * root) @ weights.double().T
    found = multiply(
        x,
        [matrix, matrix],
        launcher,
        dtype=torch.float32,
        norm=norm,
        eps=1e-5,
        activation="relu",
    )
    errors.append(_error(found, product.relu() * product))
    return worst_of(errors)


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def random_matrix(
    name: str,
    layout: PlaneLayout | None,
    rows: int,
    columns: int,
    device: torch.device,
    generator: torch.Generator,
    launcher: Launcher | None = None,
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
    matrix = FragmentMatrix(name, rows, columns, device, launcher)
    matrix.fill(fields)
    return matrix, _values(fields, layout)


def _values(fields: BlockFields, layout: PlaneLayout) -> Tensor:
    """The weights float32 (N, columns) of the fields of N rows, by torch alone."""
    columns = fields.codes.shape[1]
    scale = fields.d.float()
    base = None if fields.base is None else fields.base.float()
    if fields.scales is not None:
        scale = _repeated(scale, fields.scales.shape[1])
        scale = scale * (fields.scales.float() - layout.scale_zero)
    if fields.minima is not None and base is not None:
        base = _repeated(base, fields.minima.shape[1]) * fields.minima.float()
    weights = _repeated(scale, columns) * (fields.codes.float() - layout.code_zero)
    return weights if base is None else weights + _repeated(base, columns)


def _repeated(values: Tensor, columns: int) -> Tensor:
    return values.repeat_interleave(columns // values.shape[1], 1)
