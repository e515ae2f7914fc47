"""Products of matrices with 1 to 64 tokens, with what comes before and after them, in one launch.

An RMS norm of the tokens comes before up to three products; biases and a residual are added after
them, or two of them become activation(gate) * up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel
from mrs.kernels.cuda.launcher import TYPES, Launcher, Limits
from mrs.kernels.workspace.fragments import (
    MOST_TOKENS,
    TOKEN_TILE,
    can_multiply,
    groups_of,
    partial_floats,
    parts_of,
    square_floats,
)

_MATRICES = 3
#: Bytes of shared memory that the driver keeps for itself in each block.
_RESERVED_BYTES = 1024
_GROUP_FLOATS = 133 * 4  # of a token: the sums of 128 rows, what spreads them, and a root

#: The activations of a gate, by their names in activations.h.
ACTIVATIONS = {
    name: name.upper() for name in ("silu", "gelu_tanh", "quick_gelu", "sigmoid", "relu", "relu2")
}
#: The sizes that formats.h declares: bytes of a warp's step, tiles of 128 columns in it, bytes of a
#: token in each of them, and whether sums of tokens are read.
_STEPS = {
    "Q4_K": (2304, 2, 288, True),
    "Q5_K": (2816, 2, 288, True),
    "Q6_K": (3360, 2, 288, True),
    "Q8_0": (4352, 2, 288, False),
    "Q4_0": (2304, 2, 288, False),
    "BF16": (4352, 1, 272, False),
}


class Fragments(Protocol):
    """A matrix in fragment order of the format `name`, in the bytes `data`."""

    name: str
    data: Tensor
    shape: tuple[int, int]


class _Matrix(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("rows", ctypes.c_int), ("is_second", ctypes.c_int))


class ProductsTask(ctypes.Structure):
    """`Products` of products.cu."""

    _fields_ = (
        ("matrices", _Matrix * _MATRICES),
        *((name, ctypes.c_void_p) for name in ("x", "norm", "bias", "added", "out")),
        *((name, ctypes.c_void_p) for name in ("partial", "squares", "arrived")),
        *((name, ctypes.c_int) for name in ("columns", "tokens", "parts", "all_rows")),
        ("eps", ctypes.c_float),
    )


def multiply(
    x: Tensor,
    matrices: Sequence[Fragments | Tensor],
    launcher: Launcher,
    *,
    dtype: torch.dtype | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """norm(x) (N, columns) times up to three matrices, joined to (N, all rows), + bias + added.

    At most MOST_TOKENS tokens and two formats; matrices that are tensors are bf16, beside others of
    their kind. The result is of `dtype`, or of that of x. `norm` are the weights (columns,) of an
    RMS norm and `bias` those of all rows, both float32; `added` is as the result. With an
    `activation`, one of ACTIVATIONS, two matrices of one kind make (N, rows): that of the first
    product times the second. ValueError for what does not fit.
    """
    x, (tokens, columns) = x.contiguous(), x.shape
    if tokens > MOST_TOKENS:
        raise ValueError(f"{tokens} tokens in one launch of at most {MOST_TOKENS}")
    names = [kind_of(matrix) for matrix in matrices]
    kinds = list(dict.fromkeys(names))
    if not can_join([(name, *matrix.shape) for name, matrix in zip(names, matrices, strict=True)]):
        raise ValueError(f"{len(matrices)} matrices of {len(kinds)} formats in one launch")
    if any(matrix.shape[1] != columns for matrix in matrices):
        raise ValueError(f"matrices of other sizes than the {columns} columns of tokens")
    rows, is_gated = [matrix.shape[0] for matrix in matrices], activation is not None
    if is_gated and (len(matrices) != 2 or len(kinds) > 1 or rows[0] != rows[1]):
        raise ValueError("a gate and what it multiplies are two matrices of one format and size")
    dtype = dtype or x.dtype
    added = None if added is None else added.contiguous()
    all_rows = rows[0] if is_gated else sum(rows)
    out = torch.empty(tokens, all_rows, dtype=dtype, device=x.device)
    if not tokens:
        return out
    groups = groups_of(rows[0]) if is_gated else sum(map(groups_of, rows))
    tiles = token_tiles(kinds, tokens, launcher.limits, x.element_size())
    passes = -(-tokens // (TOKEN_TILE * tiles))
    floats = partial_floats(groups, columns, tokens, is_gated=is_gated)
    squares = square_floats(groups, columns, tokens) if norm is not None else 0
    # One memory: it lives until the launch is in its stream.
    room = torch.empty(floats + squares, device=x.device)
    shared_bytes = shared_bytes_of(kinds, tiles, launcher.limits, x.element_size())
    assert shared_bytes is not None
    task = ProductsTask(
        tuple(
            _Matrix(_address(matrix), count, name != kinds[0])
            for matrix, count, name in zip(matrices, rows, names, strict=True)
        ),
        x.data_ptr(),
        None if norm is None else norm.data_ptr(),
        None if bias is None else bias.data_ptr(),
        None if added is None else added.data_ptr(),
        out.data_ptr(),
        room.data_ptr(),
        room.data_ptr() + 4 * floats,
        launcher.counters.data_ptr(),
        columns,
        tokens,
        parts_of(groups, columns),
        all_rows,
        eps,
    )
    kernel = products_kernel(
        kinds,
        tiles,
        x.dtype,
        dtype,
        shared_bytes,
        has_norm=norm is not None,
        activation=activation,
        is_whole=columns % 256 == 0,
    )
    launcher.launch(kernel, (groups, parts_of(groups, columns), passes), shared_bytes, task)
    return out


def can_join(matrices: Sequence[tuple[str, int, int]]) -> bool:
    """Whether one launch multiplies these formats, rows and columns with the same tokens."""
    kinds = {name for name, _, _ in matrices}
    is_alike = len(kinds) <= (1 if "BF16" in kinds else 2) and len({x[2] for x in matrices}) == 1
    return 1 <= len(matrices) <= _MATRICES and is_alike and all(can_multiply(*x) for x in matrices)


def products_kernel(
    kinds: Sequence[str],
    tiles: int,
    x: torch.dtype,
    out: torch.dtype,
    shared_bytes: int,
    *,
    is_whole: bool,
    has_norm: bool = False,
    activation: str | None = None,
) -> Kernel:
    """The kernel for matrices of one or two formats, and so many tiles of 8 tokens."""
    return Kernel.of(
        "products",
        FIRST=kinds[0],
        SECOND=kinds[-1],
        TILES=tiles,
        X=TYPES[x],
        OUT=TYPES[out],
        HAS_NORM=has_norm,
        ACTIVATION=ACTIVATIONS[activation] if activation else "NO_ACTIVATION",
        IS_WHOLE=is_whole,
        SHARED_BYTES=shared_bytes,
    )


def token_tiles(kinds: Sequence[str], tokens: int, limits: Limits, x_bytes: int = 2) -> int:
    """Tiles of 8 tokens that a block computes: as many as tokens need and shared memory has."""
    wanted = 1 << (-(-tokens // TOKEN_TILE) - 1).bit_length()
    while shared_bytes_of(kinds, wanted, limits, x_bytes) is None:
        wanted //= 2
    return wanted


def shared_bytes_of(
    kinds: Sequence[str], tiles: int, limits: Limits, x_bytes: int = 2
) -> int | None:
    """Shared memory of a block: what leaves room for a second one, if two stages fit in that.

    `x_bytes` are those of a value of x. None if they do not even fit in all of it.
    """
    needed = max(_least_bytes(kind, tiles, x_bytes) for kind in kinds)
    half = limits.multiprocessor_bytes // 2 - _RESERVED_BYTES
    for available in (half, limits.block_bytes):
        if needed <= available:
            return available
    return None


def _least_bytes(kind: str, tiles: int, x_bytes: int) -> int:
    """What `convert` makes and two stages; or the sums of a block."""
    weights, halves, token, has_sums = _STEPS[kind]
    tokens = tiles * TOKEN_TILE
    made = tokens * (halves * token + (64 if has_sums else 0) + 4)
    stage = 8 * weights + tokens * halves * 128 * x_bytes
    return max(made + 2 * stage, tokens * _GROUP_FLOATS + 16)


def kind_of(matrix: Fragments | Tensor) -> str:
    """The format of a matrix; of a tensor that the kernels do not read, the name of its type."""
    if not isinstance(matrix, Tensor):
        return matrix.name
    is_read = matrix.dtype == torch.bfloat16 and matrix.is_contiguous()
    return "BF16" if is_read else str(matrix.dtype)


def _address(matrix: Fragments | Tensor) -> int:
    return (matrix if isinstance(matrix, Tensor) else matrix.data).data_ptr()
