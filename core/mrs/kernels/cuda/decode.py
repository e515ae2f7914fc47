"""Weights in fragment order as ordinary rows, in one launch."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel
from mrs.kernels.cuda.launcher import TYPES, Launcher
from mrs.kernels.workspace.fragments import TILE_ROWS, tiles_of

_TILES_OF_BLOCK = 8


class DecodingTask(ctypes.Structure):
    """`Decoding` of decode.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "ids", "out")),
        ("first_row", ctypes.c_int),
        ("columns", ctypes.c_int),
    )


def decode_panel(name: str, data: Tensor, first_row: int, out: Tensor, launcher: Launcher) -> None:
    """out (rows, columns) = the rows from `first_row` on of fragments `data`; multiples of 16."""
    _decode(name, data, None, first_row, out, len(out) // TILE_ROWS, launcher)


def decode_chosen(name: str, data: Tensor, ids: Tensor, out: Tensor, launcher: Launcher) -> None:
    """out (N, columns) = the rows `ids` (N,) of fragments `data`."""
    _decode(name, data, ids.long().contiguous(), 0, out, len(ids), launcher)


def decode_kernel(name: str, dtype: torch.dtype) -> Kernel:
    return Kernel.of("decode", FIRST=name, OUT=TYPES[dtype])


def _decode(
    name: str,
    data: Tensor,
    ids: Tensor | None,
    first_row: int,
    out: Tensor,
    units: int,
    launcher: Launcher,
) -> None:
    columns = out.shape[1]
    task = DecodingTask(
        data.data_ptr(), None if ids is None else ids.data_ptr(), out.data_ptr(), first_row, columns
    )
    grid = units, -(-tiles_of(columns) // _TILES_OF_BLOCK), 1
    if units:
        launcher.launch(decode_kernel(name, out.dtype), grid, 0, task)
