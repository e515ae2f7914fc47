"""Products of matrices with 1 to 64 tokens, and what comes before and after them, in two launches.

`prepare` makes fragments of tokens, on the way from a residual stream (an RMS norm) or from the
gate and up matrices (silu(gate) * up). `multiply` multiplies up to three matrices with them, in one
launch, and adds biases and a residual. All is for one device and follows torch's current stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel, cubin_of
from mrs.kernels.cuda.driver import LoadedKernel, load_kernel, shared_bytes
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix, can_multiply, tiles_of
from mrs.kernels.cuda.nvrtc import nvrtc

#: Tokens of a launch. A GPU with little shared memory needs several passes over the weights for
#: them.
MOST_TOKENS = 64
THREADS = 256
GROUP_ROWS = 128
_MATRICES = 3
_TOKEN_TILE = 8
#: Blocks that a launch should have, two on each of the 132 multiprocessors of an H100. It is the
#: same for every GPU, and so are the parts of columns whose sums are added up: and with them, the
#: bits.
_BLOCKS = 264
_MOST_PARTS = 16
#: A counter for each group of rows and pass of a launch that has several parts.
COUNTERS = _BLOCKS // 2 * (MOST_TOKENS // _TOKEN_TILE)
#: Bytes of shared memory that the driver keeps for itself in each block.
_RESERVED_BYTES = 1024

_TYPES = {torch.float32: "Float32", torch.float16: "Float16", torch.bfloat16: "BFloat16"}

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


class _Matrix(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("rows", ctypes.c_int), ("is_second", ctypes.c_int))


class ProductsTask(ctypes.Structure):
    """`Products` of products.cu."""

    _fields_ = (
        ("matrices", _Matrix * _MATRICES),
        *((name, ctypes.c_void_p) for name in ("x", "sums", "factors", "bias", "added", "out")),
        *((name, ctypes.c_void_p) for name in ("partial", "arrived")),
        *((name, ctypes.c_int) for name in ("columns", "tokens", "parts", "all_rows")),
    )


class PreparationTask(ctypes.Structure):
    """`Preparation` of prepare.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "values", "sums", "factors")),
        ("columns", ctypes.c_int),
        ("tokens", ctypes.c_int),
        ("eps", ctypes.c_float),
    )


class Launcher(Protocol):
    """Where kernels run, and with how much memory."""

    limits: Limits
    counters: Tensor  # COUNTERS zeros, int32, which launches leave as they were

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared_bytes: int,
        task: ctypes.Structure,
    ) -> None: ...


@dataclass(frozen=True)
class Limits:
    """An architecture, and its shared memory for a block and for all of a multiprocessor."""

    architecture: str
    block_bytes: int
    multiprocessor_bytes: int


@dataclass(frozen=True)
class Prepared:
    """Tokens in fragment order, as prepare.cu writes them; `is_bf16` for bf16 weights."""

    values: Tensor
    sums: Tensor
    factors: Tensor
    columns: int
    is_bf16: bool

    @property
    def tokens(self) -> int:
        return len(self.factors)


def prepare(
    x: Tensor,
    launcher: Launcher,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    is_gated: bool = False,
    is_bf16: bool = False,
) -> Prepared:
    """x (N, columns), or with `is_gated` (N, gates and as many values), as fragments.

    `norm` (columns,) float32 are the weights of an RMS norm.
    """
    x = x.contiguous()
    tokens, columns = len(x), x.shape[1] // (2 if is_gated else 1)
    tiles = tiles_of(columns)
    values = torch.empty(2 * tiles, tokens, 256, dtype=torch.uint8, device=x.device)
    sums = torch.empty(tiles, tokens, 64, dtype=torch.uint8, device=x.device)
    factors = torch.empty(tokens, device=x.device)
    task = PreparationTask(
        x.data_ptr(),
        None if norm is None else norm.data_ptr(),
        values.data_ptr(),
        sums.data_ptr(),
        factors.data_ptr(),
        columns,
        tokens,
        eps,
    )
    kernel = prepare_kernel(x.dtype, has_norm=norm is not None, is_gated=is_gated, is_bf16=is_bf16)
    if tokens:
        launcher.launch(kernel, (tokens, 1, 1), 64, task)
    return Prepared(values, sums, factors, columns, is_bf16)


def multiply(
    x: Prepared,
    matrices: Sequence[FragmentMatrix | Tensor],
    launcher: Launcher,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """x times up to three matrices, joined to (N, all rows) of `dtype`, + bias + added.

    At most MOST_TOKENS tokens and two formats; matrices that are tensors are bf16, beside others of
    their kind. `bias` is float32 (all rows,), `added` as the result. ValueError for what does not
    fit.
    """
    if x.tokens > MOST_TOKENS:
        raise ValueError(f"{x.tokens} tokens in one launch of at most {MOST_TOKENS}")
    names = [_name(matrix) for matrix in matrices]
    kinds = list(dict.fromkeys(names))
    if not 1 <= len(matrices) <= _MATRICES or len(kinds) > 2:
        raise ValueError(f"{len(matrices)} matrices of {len(kinds)} formats in one launch")
    for matrix, name in zip(matrices, names, strict=True):
        is_fitting = can_multiply(name, *matrix.shape) and (name == "BF16") == x.is_bf16
        if matrix.shape[1] != x.columns or not is_fitting:
            raise ValueError(f"{name} {tuple(matrix.shape)} with {x.columns} columns of tokens")
    rows = [matrix.shape[0] for matrix in matrices]
    added = None if added is None else added.contiguous()
    out = torch.empty(x.tokens, sum(rows), dtype=dtype, device=x.values.device)
    if not out.numel():
        return out
    groups = sum(-(-count // GROUP_ROWS) for count in rows)
    parts = parts_of(groups, x.columns)
    tiles = token_tiles(kinds, x.tokens, launcher.limits)
    passes = -(-x.tokens // (_TOKEN_TILE * tiles))
    partial = None
    if parts > 1:
        partial = torch.empty(parts * groups * x.tokens * GROUP_ROWS, device=out.device)
    shared_bytes = shared_bytes_of(kinds, tiles, launcher.limits)
    assert shared_bytes is not None
    task = ProductsTask(
        tuple(
            _Matrix(_address(matrix), count, name != kinds[0])
            for matrix, count, name in zip(matrices, rows, names, strict=True)
        ),
        x.values.data_ptr(),
        x.sums.data_ptr(),
        x.factors.data_ptr(),
        None if bias is None else bias.data_ptr(),
        None if added is None else added.data_ptr(),
        out.data_ptr(),
        None if partial is None else partial.data_ptr(),
        launcher.counters.data_ptr(),
        x.columns,
        x.tokens,
        parts,
        sum(rows),
    )
    kernel = products_kernel(kinds, tiles, dtype, shared_bytes, is_whole=x.columns % 256 == 0)
    launcher.launch(kernel, (groups, parts, passes), shared_bytes, task)
    return out


def prepare_kernel(dtype: torch.dtype, *, has_norm: bool, is_gated: bool, is_bf16: bool) -> Kernel:
    return Kernel.of(
        "prepare", X=_TYPES[dtype], HAS_NORM=has_norm, IS_GATED=is_gated, IS_BF16=is_bf16
    )


def products_kernel(
    kinds: Sequence[str], tiles: int, dtype: torch.dtype, shared_bytes: int, *, is_whole: bool
) -> Kernel:
    """The kernel for matrices of one or two formats, and so many tiles of 8 tokens."""
    return Kernel.of(
        "products",
        FIRST=kinds[0],
        SECOND=kinds[-1],
        TILES=tiles,
        OUT=_TYPES[dtype],
        IS_WHOLE=is_whole,
        SHARED_BYTES=shared_bytes,
    )


def parts_of(groups: int, columns: int) -> int:
    """Into how many parts a launch cuts the columns of so many groups of rows."""
    return max(1, min(_BLOCKS // groups, tiles_of(columns), _MOST_PARTS))


def token_tiles(kinds: Sequence[str], tokens: int, limits: Limits) -> int:
    """Tiles of 8 tokens that a block computes: as many as tokens need and shared memory has."""
    wanted = 1 << (-(-tokens // _TOKEN_TILE) - 1).bit_length()
    while shared_bytes_of(kinds, wanted, limits) is None:
        wanted //= 2
    return wanted


def shared_bytes_of(kinds: Sequence[str], tiles: int, limits: Limits) -> int | None:
    """Shared memory of a block: what leaves room for a second one, if two stages fit in that.

    None if they do not even fit in all of it.
    """
    stage = max(_stage_bytes(kind, tiles) for kind in kinds)
    half = limits.multiprocessor_bytes // 2 - _RESERVED_BYTES
    for available in (half, limits.block_bytes):
        if 2 * stage <= available:
            return available
    return None


def _stage_bytes(kind: str, tiles: int) -> int:
    weights, halves, token, has_sums = _STEPS[kind]
    tokens = tiles * _TOKEN_TILE
    return 8 * weights + tokens * (halves * token + (64 if has_sums else 0))


def _name(matrix: FragmentMatrix | Tensor) -> str:
    if isinstance(matrix, FragmentMatrix):
        return matrix.name
    return (
        "BF16" if matrix.dtype == torch.bfloat16 and matrix.is_contiguous() else str(matrix.dtype)
    )


def _address(matrix: FragmentMatrix | Tensor) -> int:
    return (matrix.data if isinstance(matrix, FragmentMatrix) else matrix).data_ptr()


class DeviceLauncher:
    """Launches kernels on one GPU, and compiles each when it is first needed."""

    def __init__(self, device: torch.device) -> None:
        """For a device with an index. Raises DriverError."""
        self.device = device
        architecture = architecture_of(*torch.cuda.get_device_capability(device))
        self.limits = Limits(architecture, *shared_bytes(device))
        self._kernels: dict[Kernel, LoadedKernel] = {}
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared_bytes: int,
        task: ctypes.Structure,
    ) -> None:
        """Start a kernel. Raises CompilerError and DriverError."""
        loaded = self._kernels.get(kernel)
        if loaded is None:
            compiler = nvrtc()
            assert compiler is not None, "whoever makes this asks for `unavailable_reason` first"
            cubin = cubin_of(kernel, self.limits.architecture, compiler)
            loaded = load_kernel(cubin, kernel.name, self.device, shared_bytes)
            self._kernels[kernel] = loaded
        loaded.launch(grid, THREADS, task)


def architecture_of(major: int, minor: int) -> str:
    """The architecture of a compute capability, with the features that it alone has, if any."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@cache
def device_launcher(device: torch.device) -> DeviceLauncher:
    """The one of a device."""
    return DeviceLauncher(device)
