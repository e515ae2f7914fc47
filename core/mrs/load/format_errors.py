"""The relative errors that formats leave in the products of a tensor, by a sample of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.architecture.gguf_layout import GgufTensor
from mrs.formats import Format
from mrs.load.tensor_reader import TensorReader
from mrs.quantization.gguf import decode, encode
from mrs.weights.binding import TRANSFORMS, Parameter

#: Rows of a tensor that are tried in each format, of each of its parameters at least some.
_ROWS, _LEAST_ROWS = 256, 8


@dataclass(frozen=True)
class Inputs:
    """What a calibration knows of the inputs of a parameter, each (columns,) float64.

    `squares` are sums over `count` inputs, `means` their means.
    """

    squares: Tensor
    means: Tensor
    count: int


class Errors(NamedTuple):
    """The energy of the error relative to that of what is computed."""

    products: float
    rows: float


def format_errors(
    tensor: GgufTensor,
    formats: Sequence[Format],
    reader: TensorReader,
    inputs: Mapping[str, Inputs],
    importance: Mapping[str, Tensor],
) -> list[Errors]:
    """The errors of a tensor in each of these formats.

    The inputs of a product vary around their means: of an error D of a row, the sum over columns of
    D^2 times the variance, and the square of D times the mean, make its energy. The correlations
    between columns are not known.
    """
    totals = torch.zeros(1 + len(formats), 2, dtype=torch.float64)
    for parameter in tensor.parameters:
        weigh = _Energy(inputs.get(parameter.name))
        counts = importance.get(parameter.name)
        for values in _sample(parameter, reader, len(tensor.parameters)):
            totals[0] += weigh(values)
            for index, format in enumerate(formats, start=1):
                found = decode(encode(values, format, counts), format)
                totals[index] += weigh(found - values)
    shares = totals[1:] / totals[0].clamp(min=1e-30)
    return [Errors(*share.tolist()) for share in shares]


class _Energy:
    """The energy of rows D (R, C) in products with the inputs of a parameter, and as they are."""

    def __init__(self, inputs: Inputs | None) -> None:
        self._inputs = inputs
        if inputs is not None:
            mean_square = inputs.squares / max(inputs.count, 1)
            self._variance = (mean_square - inputs.means**2).clamp(min=0)

    def __call__(self, rows: Tensor) -> Tensor:
        rows = rows.double()
        plain = rows.square().sum()
        if self._inputs is None:
            return torch.stack((plain, plain))
        varying = (rows.square() @ self._variance).sum()
        steady = (rows @ self._inputs.means).square().sum()
        return torch.stack(((varying + steady) * self._inputs.count, plain))


def _sample(parameter: Parameter, reader: TensorReader, parameters: int) -> Iterator[Tensor]:
    """Some rows of a parameter, evenly spread, float32 (R, columns)."""
    rows = parameter.shape[0]
    wanted = max(_LEAST_ROWS, _ROWS // parameters)
    step = max(1, rows // wanted)
    for piece in parameter.pieces:
        first = 0
        for chunk, stored in reader.chunks(piece, parameter.columns):
            some = chunk[-first % step :: step]
            first += len(chunk)
            if not len(some):
                continue
            values = decode(some.contiguous(), stored)
            if piece.transform is not None:
                TRANSFORMS[piece.transform](values)
            yield values
