"""The loaded parameters of a model, looked up by slot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.norms import layer_norm, rms_norm, rms_norm_of_parts
from mrs.layers.norm.spec import Norm
from mrs.model.linear import Linear
from mrs.quantization.matrix import Matrix

#: Adds up what several processes have computed with their parts of a weight; all get the sum.
SumOfRanks = Callable[[Tensor], Tensor]


class ModelWeights:
    """The loaded parameters of a model, or those whose names begin with `prefix`.

    If these are the part of a process of those that share the layers, it has `sum_of_ranks`.
    """

    def __init__(
        self,
        matrices: Mapping[str, Matrix],
        vectors: Mapping[str, Tensor],
        prefix: str = "",
        sum_of_ranks: SumOfRanks | None = None,
    ) -> None:
        self._matrices = matrices
        self._vectors = vectors
        self._prefix = prefix
        self.sum_of_ranks = sum_of_ranks

    def layer(self, index: int) -> ModelWeights:
        return self.under(f"layers.{index}.")

    def under(self, prefix: str) -> ModelWeights:
        """The parameters whose names continue with `prefix`."""
        return ModelWeights(self._matrices, self._vectors, self._prefix + prefix, self.sum_of_ranks)

    def of_head(self, index: int) -> ModelWeights:
        """The parameters of one of several draft heads, named as those of the first."""
        usual = {f"layers.{index}.": "layers.0.", f"heads.{index}.": ""}
        named = {
            name: first + name.removeprefix(prefix)
            for name in (*self._matrices, *self._vectors)
            for prefix, first in usual.items()
            if name.startswith(prefix)
        }
        matrices = {new: self._matrices[old] for old, new in named.items() if old in self._matrices}
        vectors = {new: self._vectors[old] for old, new in named.items() if old in self._vectors}
        return ModelWeights({**self._matrices, **matrices}, {**self._vectors, **vectors})

    def of_model(self) -> ModelWeights:
        """The parameters of the whole model."""
        return ModelWeights(self._matrices, self._vectors, sum_of_ranks=self.sum_of_ranks)

    def with_matrices(self, matrices: Mapping[str, Matrix]) -> ModelWeights:
        """The same parameters with other matrices for some names."""
        matrices = {**self._matrices, **matrices}
        return ModelWeights(matrices, self._vectors, self._prefix, self.sum_of_ranks)

    def with_shared(self, others: ModelWeights, names: Collection[str]) -> ModelWeights:
        """The same parameters, and those of another model with these names."""
        matrices = {name: others._matrices[name] for name in names if name in others._matrices}
        vectors = {name: others._vectors[name] for name in names if name in others._vectors}
        return ModelWeights({**matrices, **self._matrices}, {**vectors, **self._vectors})

    def shared_by(self, sum_of_ranks: SumOfRanks) -> ModelWeights:
        """The same parameters as those of one of several processes."""
        return ModelWeights(self._matrices, self._vectors, self._prefix, sum_of_ranks)

    def matrix(self, slot: str) -> Matrix:
        return self._matrices[f"{self._prefix}{slot}.weight"]

    def packed(self, *slots: str) -> list[PackedMatrix]:
        """The matrices of these slots; an empty list unless all of them are packed."""
        matrices = [self.matrix(slot) for slot in slots]
        packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
        return [] if len(packed) < len(slots) else packed

    def linear(self, slot: str) -> Linear:
        return Linear(self.matrix(slot), self.optional_vector(f"{slot}.bias"))

    def vector(self, name: str) -> Tensor:
        return self._vectors[self._prefix + name]

    def optional_vector(self, name: str) -> Tensor | None:
        return self._vectors.get(self._prefix + name)

    def bytes_by_device(self) -> dict[torch.device, int]:
        """Bytes of all parameters on each device."""
        totals: dict[torch.device, int] = {}
        sizes = [(matrix.device, matrix.nbytes) for matrix in self._matrices.values()]
        sizes += [(vector.device, vector.nbytes) for vector in self._vectors.values()]
        for device, size_bytes in sizes:
            totals[device] = totals.get(device, 0) + size_bytes
        return totals

    def gate(self, slot: str) -> Tensor:
        """tanh of a learned gate (1,). It stays on its device: reading it would wait for a GPU."""
        return self.vector(slot).tanh()

    def norm(self, slot: str, norm: Norm, size: int = 0, *, is_shared: bool = False) -> NormModule:
        """Of rows of `size` values, if there are weights for several of them.

        With `is_shared` that of values of which each process has some.
        """
        weight = self.vector(f"{slot}.weight") if norm.learned else None
        if weight is not None and size and weight.numel() > size:
            weight = weight.view(-1, size)
        return NormModule(
            norm,
            weight,
            self.optional_vector(f"{slot}.bias"),
            self.sum_of_ranks if is_shared else None,
        )


class NormModule:
    """A normalization over the last dimension, with its weights if it has any.

    With `sum_of_ranks` it is over the values of all processes.
    """

    def __init__(
        self,
        norm: Norm,
        weight: Tensor | None,
        bias: Tensor | None,
        sum_of_ranks: SumOfRanks | None = None,
    ) -> None:
        assert sum_of_ranks is None or norm.kind == "rms"
        self._norm = norm
        self._weight = weight
        self._bias = bias
        self._sum_of_ranks = sum_of_ranks

    def __call__(self, x: Tensor) -> Tensor:
        if self._sum_of_ranks is not None:
            return rms_norm_of_parts(x, self._weight, self._norm.eps, self._sum_of_ranks)
        if self._norm.kind == "rms":
            return rms_norm(x, self._weight, self._norm.eps)
        return layer_norm(x, self._weight, self._bias, self._norm.eps)
