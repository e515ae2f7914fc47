"""Sums of squares of the inputs of every matrix, over the tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.description import Description
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.quantization.matrix import Matrix
from mrs.request import PREFILL_CHUNK_TOKENS

#: Tokens of the text in one sequence, after its bos token.
SEQUENCE_TOKENS = 1024


class ObservedMatrix:
    """A weight that adds up the squares of its inputs in `squares` (columns,), float64."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self.device, self.shape, self.nbytes = matrix.device, matrix.shape, matrix.nbytes
        self.squares = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)

    def matmul(self, x: Tensor) -> Tensor:
        self.squares += _sums_of_squares(x)
        return self._matrix.matmul(x)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self._matrix.rows(ids, dtype)


def _sums_of_squares(x: Tensor) -> Tensor:
    """Over the rows of x (N, C): (C,) float64, without a temporary copy of float32 activations."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=0, dtype=torch.float32)
    return norms.double().square_()


class Observation:
    """Observed matrices of a model, by the names of their parameters."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self._matrices: dict[str, ObservedMatrix] = {}

    def wrap(self, weights: ModelWeights) -> ModelWeights:
        """The same weights, observed."""
        names = [
            parameter.name
            for parameter in self._description.parameters
            if parameter.role in ("matrix", "embedding", "head")
        ]
        self._matrices = {
            name: ObservedMatrix(weights.matrix(name.removesuffix(".weight"))) for name in names
        }
        return weights.with_matrices(self._matrices)

    @torch.inference_mode()
    def read(self, decoder: Decoder, tokens: Sequence[int], bos: Sequence[int]) -> None:
        """Compute a text, each SEQUENCE_TOKENS tokens as a sequence of its own after `bos`."""
        head = self._matrices.get(self._description.spec.head_weight)

        def observe_head(x: Tensor) -> None:
            if head is not None and x.shape[1] == len(head.squares):
                head.squares += _sums_of_squares(x)

        for first in range(0, len(tokens), SEQUENCE_TOKENS):
            ids = [*bos, *tokens[first : first + SEQUENCE_TOKENS]]
            cache = decoder.new_cache(len(ids), PREFILL_CHUNK_TOKENS)
            for start in range(0, len(ids), PREFILL_CHUNK_TOKENS):
                part = ids[start : start + PREFILL_CHUNK_TOKENS]
                batch = forward_batch([SequenceInput(cache, part, length=len(ids))])
                decoder.forward(batch, [cache], observe=observe_head)

    @property
    def squares(self) -> dict[str, Tensor]:
        """The sums (columns,) of each matrix, on the CPU."""
        return {name: matrix.squares.cpu() for name, matrix in self._matrices.items()}
