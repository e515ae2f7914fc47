"""Quantized matrices in the layout of the native CPU kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mrs.formats import FORMATS
from mrs.kernels import c_structs
from mrs.kernels.cpu.library import NativeLibrary, native_library
from mrs.kernels.packed_layout import GROUP_ROWS, PACKED_FORMATS, packed_bytes

_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class ExpertSource(NamedTuple):
    """A function, by its address, that brings experts of a layer into memory (`Fetch` in C).

    `owner` has the function, and knows the layers that use it.
    """

    owner: ExpertOwner
    layer: int


class ExpertOwner(Protocol):
    """What has experts that are not always in memory."""

    asking: set[int]

    @property
    def address(self) -> int:
        """The address of its function."""

    @property
    def room(self) -> Tensor:
        """Room that the native library needs with it, valid as long as this object."""

    def raise_failure(self) -> None:
        """Raise what the function has failed with, if it has."""

    def in_turn(self, layer: int, experts: Sequence[int]) -> Iterator[int]:
        """Different experts of a layer, each in memory until the next one is asked for."""


class PackedMatrix:
    """A (rows, columns) weight whose blocks are stored in groups of 16 interleaved rows.

    It has as many bytes as in the file, with rows rounded up to a multiple of 16. Products quantize
    the activations to 8 bits in groups of 32 columns, except with F16, BF16, F32, FP8 and NF4
    weights. A row of the result has the same bits whatever other rows are computed with it, except
    on the path `amx` with F16, FP8 and NF4 weights: with more than 16 rows, relative errors of 4e-6
    are added. Subnormal activations may be treated as 0; so may such weights of FP8 and NF4 there,
    but no others.
    """

    device = torch.device("cpu")

    def __init__(self, format_name: str, rows: int, columns: int) -> None:
        """Allocate the weight, for `fill` to write; ValueError if rows are not whole blocks."""
        data = torch.empty(_packed_bytes(format_name, rows, columns), dtype=torch.uint8)
        self._set_up(data, format_name, rows, columns)

    @classmethod
    def wrap(
        cls, data: Tensor, format_name: str, rows: int, columns: int, *, is_written: bool = True
    ) -> PackedMatrix:
        """The matrix whose packed bytes are `data`, which is shared, or will be."""
        size_bytes = _packed_bytes(format_name, rows, columns)
        if data.numel() != size_bytes or data.dtype is not torch.uint8 or not data.is_cpu:
            raise ValueError(f"{data.numel()} packed bytes instead of {size_bytes}")
        matrix = cls.__new__(cls)
        matrix._set_up(data.contiguous(), format_name, rows, columns)
        if is_written:
            matrix.mark_subnormal()
        return matrix

    def mark_subnormal(self) -> None:
        """Find the subnormal weights, after the bytes were written by others."""
        if self._subnormal is not None:
            self._library.functions.mrs_mark_subnormal(self.address, torch.get_num_threads())

    def _set_up(self, data: Tensor, format_name: str, rows: int, columns: int) -> None:
        library, format_code = _required_library(), PACKED_FORMATS.index(format_name)
        self.format_name = format_name
        self._library = library
        self._data = data
        self._order: Tensor | None = None
        self._is_on_disk = False
        #: What brings its bytes into memory before the native library needs them.
        self.source: ExpertSource | None = None
        groups = -(-rows // GROUP_ROWS)
        self._subnormal = torch.zeros(groups).bool() if format_name == "BF16" else None
        self._matrix = c_structs.Matrix(
            library.path_address,
            format_code,
            rows,
            columns,
            data.data_ptr(),
            None if self._subnormal is None else self._subnormal.data_ptr(),
            None,
            False,
        )
        self._address = ctypes.addressof(self._matrix)
        self._row_bytes = FORMATS[format_name].size_bytes((columns,))
        self.shape = (rows, columns)

    @property
    def data(self) -> Tensor:
        """The packed bytes, uint8."""
        return self._data

    @property
    def address(self) -> int:
        """The address of the C struct, valid as long as this object lives."""
        return self._address

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are its own."""
        order_bytes = 0 if self._order is None else self._order.nbytes
        return order_bytes if self._is_on_disk else self._data.nbytes + order_bytes

    def leave_on_disk(self) -> None:
        """Its bytes share memory with those of others, from now on."""
        self._is_on_disk = True

    def move(self, address: int) -> None:
        """Its bytes will be at `address`, from now on; the caller keeps them alive."""
        self._matrix.packed = address

    def permute(self, order: Tensor) -> None:
        """Multiply column i of the blocks with column `order[i]` of activations, from now on.

        `order` (columns,) is a permutation. `rows` and `decode` have the columns of activations.
        """
        self._order = order.to(torch.int32).contiguous()
        self._matrix.order = self._order.data_ptr()

    @property
    def is_permuted(self) -> bool:
        return self._order is not None

    def add_residuals(self) -> None:
        """From now on multiply what rounding activations to 8 significant bits leaves of them, too.

        The results have errors that are a hundred times smaller, and are computed in twice the
        time where memory is not the limit. Formats whose products do not round are as before.
        """
        self._matrix.residuals = True

    def fill(self, blocks: Tensor, first_row: int = 0) -> None:
        """Write rows of a file's blocks, uint8 (R, row_bytes), from row `first_row` on.

        `first_row` must be a multiple of 16, and so must R unless these are the last rows.
        Otherwise, and for rows of another size, raises ValueError.
        """
        count, row_bytes = blocks.shape
        if row_bytes != self._row_bytes or blocks.dtype is not torch.uint8 or not blocks.is_cpu:
            raise ValueError(f"rows of {row_bytes} bytes instead of {self._row_bytes}")
        whole = count % GROUP_ROWS == 0 or first_row + count == self.shape[0]
        if first_row % GROUP_ROWS or not whole or first_row + count > self.shape[0]:
            raise ValueError(f"{count} rows from {first_row} do not fill groups of {GROUP_ROWS}")
        blocks = blocks.contiguous()  # kept until it is read: rows that a step skips are copied
        self._library.functions.mrs_pack(
            self._address,
            blocks.data_ptr(),
            row_bytes,
            first_row,
            count,
            torch.get_num_threads(),
        )

    def matmul(self, x: Tensor) -> Tensor:
        """x (N, columns) times the transposed weight: (N, rows), in x's dtype."""
        if x.shape[1] != self.shape[1] or not x.is_cpu:
            raise ValueError(
                f"x has {x.shape[1]} columns on {x.device}, the matrix {self.shape[1]}"
            )
        if x.dtype not in _TYPES:
            return self.matmul(x.float()).to(x.dtype)
        x = x.contiguous()
        tokens = x.shape[0]
        out = torch.empty(tokens, self.shape[0], dtype=x.dtype)
        if tokens:
            self._library.functions.mrs_matmul(
                self._address,
                x.data_ptr(),
                _TYPES[x.dtype],
                tokens,
                out.data_ptr(),
                torch.get_num_threads(),
            )
        return out

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The values of the rows `ids` (N,), as (N, columns). Raises BadIndex."""
        ids = ids.long().contiguous()
        if dtype not in _TYPES:
            return self.rows(ids, torch.float32).to(dtype)
        out = torch.empty(ids.numel(), self.shape[1], dtype=dtype)
        self._decode_into(out, ids)
        return self._in_order(out)

    def decode(self) -> Tensor:
        """The exact values, float32 (rows, columns)."""
        out = torch.empty(self.shape)
        self._decode_into(out)
        return self._in_order(out)

    def _in_order(self, rows: Tensor) -> Tensor:
        """Rows of the blocks, with columns in the order of activations."""
        if self._order is None:
            return rows
        return torch.empty_like(rows).index_copy_(1, self._order.long(), rows)

    def _decode_into(self, out: Tensor, ids: Tensor | None = None) -> None:
        """Write the rows `ids`, or the first ones, into out (N, columns)."""
        self._library.functions.mrs_decode(
            self._address,
            None if ids is None else ids.data_ptr(),
            out.shape[0],
            _TYPES[out.dtype],
            out.data_ptr(),
            torch.get_num_threads(),
        )


def _packed_bytes(format_name: str, rows: int, columns: int) -> int:
    if rows < 1 or columns < 1:
        raise ValueError(f"a matrix cannot have {rows} rows of {columns} columns")
    return packed_bytes(FORMATS[format_name], rows, columns)


def _required_library() -> NativeLibrary:
    library = native_library()
    if library is None:
        raise RuntimeError("the native kernels are not available")
    return library
