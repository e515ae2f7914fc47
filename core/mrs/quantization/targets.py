"""Weights being loaded: one class for each form of storage, filled with rows of the file in order.

| form     | memory                                  | products on that device               |
| -------- | --------------------------------------- | ------------------------------------- |
| `plain`  | a float tensor                          | torch                                 |
| `packed` | interleaved blocks in the CPU's arena   | native kernels                        |
| `blocks` | on a GPU fragments, or bit planes       | CUDA or Triton kernels                |
|          | elsewhere the file's blocks             | decode every time                     |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from mrs.formats import Format
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.huge_pages import HugePageArena
from mrs.kernels.packed_layout import GROUP_ROWS
from mrs.kernels.triton.bit_planes import PlaneLayout
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.triton.self_test import layouts_to_check, products_unavailable_reason
from mrs.kernels.workspace.fragments import TILE_ROWS, can_multiply
from mrs.quantization.cuda_kernels import has_cuda_products
from mrs.quantization.gguf import decode, requantize
from mrs.quantization.gguf.fields import PLANE_LAYOUTS, split_blocks
from mrs.quantization.gguf.unquantized import DTYPES
from mrs.quantization.matrix import BlockMatrix, DenseMatrix, Matrix
from mrs.quantization.storage import Form, Storage
from mrs.topology import is_expert
from mrs.weights.binding import TRANSFORMS, Parameter, WeightTransform

_logger = logging.getLogger(__name__)

#: Weights that are copied to a device and quantized there at a time.
_BLOCK_CHUNK_WEIGHTS = 1 << 21


class Memory(Protocol):
    """Memory for weights on a CPU."""

    def allocate(self, size_bytes: int) -> Tensor:
        """uint8 (size_bytes,), uninitialized."""


class DenseTarget:
    """A float tensor: in the arena on a CPU, allocated by torch on another device."""

    uses_arena = True

    def __init__(
        self, parameter: Parameter, storage: Storage, device: torch.device, arena: Memory
    ) -> None:
        self._dtype = DTYPES[storage.format.name]
        if device.type == "cpu":
            memory = arena.allocate(storage.size_bytes)
            self.tensor = memory.view(self._dtype).view(parameter.shape)
        else:
            self.tensor = torch.empty(parameter.shape, dtype=self._dtype, device=device)
        self._table = self.tensor.view(parameter.rows, parameter.columns)
        self._row = 0

    def add(self, rows: Tensor, stored: Format, transform: WeightTransform | None) -> None:
        """Decode the next rows, uint8 (R, row_bytes) of the format `stored`."""
        target = self._table[self._row : self._row + len(rows)]
        values = decode(rows, stored, self._dtype).view(target.shape)
        target.copy_(values, non_blocking=target.device.type == "cuda")
        if transform is not None:
            TRANSFORMS[transform](target)
        self._row += len(rows)

    def matrix(self) -> Matrix:
        return DenseMatrix(self.tensor)


class PackedTarget:
    """A matrix of the native CPU kernels, in the arena."""

    uses_arena = True

    def __init__(
        self, parameter: Parameter, storage: Storage, device: torch.device, arena: Memory
    ) -> None:
        rows, columns = parameter.shape
        data = arena.allocate(storage.size_bytes - storage.order_bytes)
        self._format = storage.format
        self._matrix = PackedMatrix.wrap(data, storage.format.name, rows, columns, is_written=False)
        if storage.residuals:
            self._matrix.add_residuals()
        self._row = 0
        self._pending: Tensor | None = None

    def add(self, rows: Tensor, stored: Format, transform: WeightTransform | None) -> None:
        """Pack the next rows, quantized to the target's format if `stored` is another.

        Only whole groups of rows can be packed, so rows may have to wait for those of the next
        piece. No quantized weight has a `transform`.
        """
        blocks = _in_format(rows, stored, self._format)
        if self._pending is not None:
            blocks = torch.cat([self._pending, blocks])
            self._pending = None
        end = self._row + len(blocks)
        if len(blocks) % GROUP_ROWS == 0 or end == self._matrix.shape[0]:
            self._matrix.fill(blocks, self._row)
            self._row = end
        else:
            self._pending = blocks.clone()

    def matrix(self) -> Matrix:
        return self._matrix


class BlockTarget:
    """A matrix of quantized blocks: as the GPU's kernels read them, else as in the file.

    The kernels of grouped experts read bit planes.
    """

    uses_arena = False

    def __init__(
        self, parameter: Parameter, storage: Storage, device: torch.device, arena: Memory
    ) -> None:
        rows, columns = parameter.shape
        self._format, name = storage.format, storage.format.name
        self._columns = columns
        self._row = 0
        self._pending: Tensor | None = None
        self._matrix: FragmentMatrix | PlaneMatrix | BlockMatrix
        layout = PLANE_LAYOUTS.get(name)
        is_grouped = is_expert(parameter.name) or not can_multiply(name, rows, columns)
        if layout is not None and not is_grouped and has_cuda_products(device, name):
            self._matrix = FragmentMatrix(name, rows, columns, device)
        elif layout is not None and _has_triton_kernels(device, layouts_to_check(layout)):
            self._matrix = PlaneMatrix(layout, rows, columns, device)
        else:
            self._matrix = BlockMatrix(storage.format, rows, columns, device)

    def add(self, rows: Tensor, stored: Format, transform: WeightTransform | None) -> None:
        """Copy the next rows to the device, and quantize them there if `stored` is another format.

        Of fragments only whole tiles of rows are written: others wait for the next ones. No
        quantized weight has a `transform`.
        """
        device, tile = self._matrix.device, self._tile_rows
        some = max(_BLOCK_CHUNK_WEIGHTS // self._columns // tile, 1) * tile
        for chunk in torch.split(rows, some):
            moved = chunk.to(device, non_blocking=device.type == "cuda")  # the host need not wait
            blocks = _in_format(moved, stored, self._format)
            if self._pending is not None:
                blocks = torch.cat([self._pending, blocks])
            whole = len(blocks) // tile * tile
            self._pending = blocks[whole:].clone() if whole < len(blocks) else None
            self._fill(blocks[:whole])

    @property
    def _tile_rows(self) -> int:
        """Rows that are written together."""
        return TILE_ROWS if isinstance(self._matrix, FragmentMatrix) else 1

    def _fill(self, blocks: Tensor) -> None:
        if isinstance(self._matrix, BlockMatrix):
            self._matrix.fill(blocks, self._row)
        elif len(blocks):
            self._matrix.fill(split_blocks(blocks, self._format), self._row)
        self._row += len(blocks)

    def matrix(self) -> Matrix:
        return self._matrix


Target = DenseTarget | PackedTarget | BlockTarget

#: The only choice by form of storage in the loader.
TARGETS: dict[Form, type[DenseTarget | PackedTarget | BlockTarget]] = {
    "plain": DenseTarget,
    "packed": PackedTarget,
    "blocks": BlockTarget,
}


def cpu_arena(storage: Mapping[str, Storage], devices: Mapping[str, torch.device]) -> HugePageArena:
    """Memory for all weights on the CPU whose targets use it; both are keyed by parameter name."""
    return HugePageArena(
        [
            storage[name].size_bytes - storage[name].order_bytes
            for name, device in devices.items()
            if device.type == "cpu" and TARGETS[storage[name].form].uses_arena
        ]
    )


def packed_rows(rows: Tensor, stored: Format, wanted: Format) -> Tensor:
    """The bytes of rows as `PackedTarget` has them: whole groups, or the last rows of a matrix."""
    blocks = _in_format(rows, stored, wanted)
    columns = blocks.shape[1] // wanted.block_bytes * wanted.block_elements
    matrix = PackedMatrix(wanted.name, len(blocks), columns)
    matrix.fill(blocks)
    return matrix.data


def _in_format(rows: Tensor, stored: Format, wanted: Format) -> Tensor:
    return rows if stored == wanted else requantize(rows, stored, wanted)


@cache
def _has_triton_kernels(device: torch.device, layouts: tuple[PlaneLayout, ...]) -> bool:
    """Whether the Triton kernels run on a device and compute correct products; warns if not."""
    if device.type != "cuda":
        return False
    reason = products_unavailable_reason(device, layouts)
    if reason is not None:
        _logger.warning("%s has to decode weights for every product: %s", device, reason)
    return reason is None
