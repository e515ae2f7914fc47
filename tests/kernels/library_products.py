"""Products that a given library computes, with the path that it has."""

from __future__ import annotations

import pytest
from torch import Tensor

from mrs.kernels.cpu import packed
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import PackedMatrix


def products_of(
    library: NativeLibrary, name: str, blocks: Tensor, xs: list[Tensor], columns: int
) -> list[Tensor]:
    """Each x (tokens, columns) times a matrix of these blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "native_library", lambda: library)
        matrix = PackedMatrix(name, len(blocks), columns)
    matrix.fill(blocks)
    return [matrix.matmul(x) for x in xs]
