"""Stream a model's weights from its files to their devices, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mrs.families.spec import Change, Parameter
from mrs.formats import Format
from mrs.kernels.memory import WeightArena, freed_memory_returned
from mrs.kernels.packed import PackedMatrix
from mrs.load.blocks import BlockFiller
from mrs.load.tensor_reader import TORCH_DTYPES, TensorReader
from mrs.model.matrix import DenseMatrix, Matrix
from mrs.model.weights import ModelWeights
from mrs.plan.storage import Storage
from mrs.quants import decode, requantize
from mrs.sizes.packed import GROUP_ROWS
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

    `storage` and `devices` are keyed by parameter name. Besides the weights themselves memory
    holds a chunk of one tensor at a time, and afterwards nothing of it.
    """
    loader = _Loader(_cpu_arena(storage, devices))
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    with freed_memory_returned(), Weights(checkpoint) as files:
        reader = TensorReader(files)
        for parameter in parameters:
            name, kept = parameter.name, storage[parameter.name]
            chunks = _chunks(reader, parameter)
            if kept.form == "packed":
                matrices[name] = loader.packed(chunks, parameter, kept)
            elif kept.form == "blocks":
                matrices[name] = _blocks(chunks, parameter, kept, devices[name])
            elif parameter.role in ("vector", "dense"):
                vectors[name] = loader.dense(chunks, parameter, kept, devices[name])
            else:
                matrices[name] = DenseMatrix(loader.dense(chunks, parameter, kept, devices[name]))
            on_bytes(name, kept.size_bytes)
    return ModelWeights(matrices, vectors)


def _cpu_arena(storage: Mapping[str, Storage], devices: Mapping[str, torch.device]) -> WeightArena:
    """Room for all that the CPU keeps, but for blocks, whose matrices allocate for themselves."""
    return WeightArena(
        [
            storage[name].size_bytes
            for name, device in devices.items()
            if device.type == "cpu" and storage[name].form != "blocks"
        ]
    )


#: Rows (uint8), their format, and what the numbers need.
_Chunks = Iterator[tuple[Tensor, Format, Change | None]]


def _chunks(reader: TensorReader, parameter: Parameter) -> _Chunks:
    for piece in parameter.pieces:
        for rows, stored in reader.chunks(piece, parameter.columns):
            yield rows, stored, piece.change


class _Loader:
    """Fills tensors; those of the CPU lie in `arena`."""

    def __init__(self, arena: WeightArena) -> None:
        self._arena = arena

    def dense(
        self, chunks: _Chunks, parameter: Parameter, kept: Storage, device: torch.device
    ) -> Tensor:
        dtype = TORCH_DTYPES[kept.format.name]
        if device.type == "cpu":
            target = self._arena.take(kept.size_bytes).view(dtype).view(parameter.shape)
        else:
            target = torch.empty(parameter.shape, dtype=dtype, device=device)
        table, row = target.view(parameter.rows, parameter.columns), 0
        for data, stored, change in chunks:
            part = table[row : row + data.shape[0]]
            part.copy_(decode(data, stored, dtype).view(part.shape))
            if change is not None:
                _CHANGES[change](part)
            row += data.shape[0]
        return target

    def packed(self, chunks: _Chunks, parameter: Parameter, kept: Storage) -> PackedMatrix:
        rows, columns = parameter.shape
        data = self._arena.take(kept.size_bytes)
        target = PackedMatrix.wrap(data, kept.format.name, rows, columns)
        row = 0
        waiting: list[Tensor] = []
        for data, stored, _ in chunks:
            blocks = data if stored == kept.format else requantize(data, stored, kept.format)
            # Groups of rows are packed whole: rows may have to wait for those of the next piece.
            blocks = torch.cat([*waiting, blocks]) if waiting else blocks
            waiting = []
            if len(blocks) % GROUP_ROWS == 0 or row + len(blocks) == rows:
                target.fill(blocks, row)
                row += len(blocks)
            else:
                waiting = [blocks.clone()]
        return target


def _blocks(chunks: _Chunks, parameter: Parameter, kept: Storage, device: torch.device) -> Matrix:
    rows, columns = parameter.shape
    filler = BlockFiller(kept.format, rows, columns, device)
    for data, stored, _ in chunks:
        filler.add(data, stored)
    return filler.matrix
