"""Linear layers."""

from __future__ import annotations

from torch import Tensor

from mrs.kernels.cpu.packed import PackedMatrix
from mrs.quantization.matrix import Matrix


class Linear:
    """x times the transposed weight, plus a bias if there is one."""

    def __init__(self, matrix: Matrix, bias: Tensor | None = None) -> None:
        self._matrix = matrix
        self._bias = bias

    def add_residuals(self) -> None:
        """Multiply activations as exactly as the matrix can, see `PackedMatrix.add_residuals`."""
        if isinstance(self._matrix, PackedMatrix):
            self._matrix.add_residuals()

    def __call__(self, x: Tensor) -> Tensor:
        y = self._matrix.matmul(x)
        return y if self._bias is None else y + self._bias.to(y.dtype)
