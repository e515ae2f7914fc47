"""Stream a model's weights from its files to their devices, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mrs.families.spec import Change, Parameter
from mrs.formats import Format
from mrs.kernels.packed import GROUP_ROWS, PackedMatrix
from mrs.load.blocks import BlockFiller
from mrs.load.pieces import piece_rows
from mrs.load.read import TORCH_DTYPES
from mrs.model.matrix import DenseMatrix, Matrix
from mrs.model.weights import ModelWeights
from mrs.plan.storage import Storage
from mrs.quants import decode, requantize
from mrs.source.checkpoint import Checkpoint
from mrs.source.weights import Weights

#: Called with a parameter's name and the bytes that it takes, when it is in place.
OnBytes = Callable[[str, int], None]

_CHANGES: dict[Change, Callable[[Tensor], Tensor]] = {
    "plus_one": lambda numbers: numbers.add_(1),
    "negative_exp": lambda numbers: numbers.exp_().neg_(),
}


def load_weights(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    storage: Mapping[str, Storage],
    devices: Mapping[str, torch.device],
    on_bytes: OnBytes,
) -> ModelWeights:
    """Every parameter on its device, in the form that `storage` says.

    `storage` and `devices` are keyed by parameter name. Besides the weights themselves at most
    one tensor is in memory at a time.
    """
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    with Weights(checkpoint) as files:
        for parameter in parameters:
            name, kept = parameter.name, storage[parameter.name]
            if kept.form == "packed":
                matrices[name] = _load_packed(files, parameter, kept)
            elif kept.form == "blocks":
                matrices[name] = _load_blocks(files, parameter, kept, devices[name])
            elif parameter.role in ("vector", "dense"):
                vectors[name] = _load_dense(files, parameter, kept, devices[name])
            else:
                matrices[name] = DenseMatrix(_load_dense(files, parameter, kept, devices[name]))
            on_bytes(name, kept.size_bytes)
    return ModelWeights(matrices, vectors)


def _load_dense(
    files: Weights, parameter: Parameter, kept: Storage, device: torch.device
) -> Tensor:
    dtype = TORCH_DTYPES[kept.format.name]
    target = torch.empty(parameter.shape, dtype=dtype, device=device)
    table, row = target.view(parameter.rows, parameter.columns), 0
    for data, stored, change in _pieces(files, parameter):
        part = table[row : row + data.shape[0]]
        # A cast that changes nothing costs nothing: `decode` then returns a view of the file.
        part.copy_(decode(data, stored, dtype).view(part.shape))
        if change is not None:
            _CHANGES[change](part)
        row += data.shape[0]
    return target


def _load_packed(files: Weights, parameter: Parameter, kept: Storage) -> PackedMatrix:
    rows, columns = parameter.shape
    target = PackedMatrix(kept.format.name, rows, columns)
    row = 0
    waiting: list[Tensor] = []
    for data, stored, _ in _pieces(files, parameter):
        blocks = data if stored == kept.format else requantize(data, stored, kept.format)
        # Groups of rows are packed whole, so rows may have to wait for those of the next piece.
        waiting.append(blocks)
        count = sum(part.shape[0] for part in waiting)
        if count % GROUP_ROWS == 0 or row + count == rows:
            target.fill(waiting[0] if len(waiting) == 1 else torch.cat(waiting), row)
            row += count
            waiting = []
    return target


def _load_blocks(
    files: Weights, parameter: Parameter, kept: Storage, device: torch.device
) -> Matrix:
    rows, columns = parameter.shape
    filler = BlockFiller(kept.format, rows, columns, device)
    for data, stored, _ in _pieces(files, parameter):
        filler.add(data, stored)
    return filler.matrix


def _pieces(files: Weights, parameter: Parameter) -> Iterator[tuple[Tensor, Format, Change | None]]:
    """Each piece's rows (uint8), their format, and what the numbers need."""
    for piece in parameter.pieces:
        rows, stored = piece_rows(files, piece, parameter.columns)
        yield rows, stored, piece.change
        files.release(files.checkpoint.tensors[piece.tensor])
