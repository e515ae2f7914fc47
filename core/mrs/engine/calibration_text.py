"""The inputs of every matrix over the tokens of a text, and what noise in its products costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mrs.architecture.description import Description
from mrs.load.importance import relative_importance
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.quantization.matrix import Matrix
from mrs.request import PREFILL_CHUNK_TOKENS

#: Tokens of the text in one sequence, after its bos token.
SEQUENCE_TOKENS = 1024


class ObservedMatrix:
    """A weight that adds up its inputs, and their squares, in `sums` and `squares` (columns,).

    Both are float64, over `count` inputs. With `noise`, its products and the rows that are looked
    up get Gaussian noise of this root-mean-square size relative to theirs.
    """

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self.device, self.shape, self.nbytes = matrix.device, matrix.shape, matrix.nbytes
        self.squares = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
        self.sums = torch.zeros_like(self.squares)
        self.count = 0
        self.observes = True
        self.noise: float | None = None
        self.noise_of_rows: float | None = None

    def observe(self, x: Tensor) -> None:
        self.squares += _sums_of_squares(x)
        self.sums += x.sum(0, dtype=torch.float32)
        self.count += len(x)

    def matmul(self, x: Tensor) -> Tensor:
        if self.observes:
            self.observe(x)
        y = self._matrix.matmul(x)
        return y if self.noise is None else _with_noise(y, x, self.noise)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        rows = self._matrix.rows(ids, dtype)
        noise = self.noise_of_rows
        return rows if noise is None else _with_noise(rows, rows, noise)


def _with_noise(y: Tensor, x: Tensor, size: float) -> Tensor:
    """y (N, R) = x (N, C) W' with noise as that of an inexact W: larger for larger x and rows.

    Errors of a weight grow with its rows, whose size the root-mean-square of a column of y shows.
    """
    generator = torch.Generator(y.device).manual_seed(0)
    noise = torch.randn(y.shape, generator=generator, device=y.device)
    lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
    mean = torch.linalg.vector_norm(lengths) / math.sqrt(max(len(x), 1))
    rms = torch.linalg.vector_norm(y, dim=0, dtype=torch.float32) / math.sqrt(max(len(y), 1))
    noise *= lengths / mean.clamp(min=1e-30)
    return (y + noise.mul_(rms * size)).to(y.dtype)


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
                head.observe(x)

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

    @property
    def importance(self) -> dict[str, Tensor]:
        """The importance (columns,) of each matrix that had inputs, with a mean of 1."""
        found = {name: relative_importance(each) for name, each in self.squares.items()}
        return {name: each for name, each in found.items() if each is not None}

    def means(self, name: str) -> Tensor:
        """The mean input (columns,) of a matrix, float64 on the CPU."""
        matrix = self._matrices[name]
        return matrix.sums.cpu() / max(matrix.count, 1)

    def count(self, name: str) -> int:
        """How many inputs a matrix had."""
        return self._matrices[name].count

    def stop(self) -> None:
        """Count no further inputs."""
        for matrix in self._matrices.values():
            matrix.observes = False

    @contextmanager
    def disturbed(self, names: Collection[str], size: float, *, rows: bool) -> Iterator[None]:
        """Meanwhile the products of these matrices, or the `rows` that are looked up, have noise
        of this relative size."""
        matrices = [self._matrices[name] for name in names]
        attribute = "noise_of_rows" if rows else "noise"
        for matrix in matrices:
            setattr(matrix, attribute, size)
        try:
            yield
        finally:
            for matrix in matrices:
                setattr(matrix, attribute, None)
