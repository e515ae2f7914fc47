"""Stream a model's weights from its files to their devices, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mrs.errors import NotReadable
from mrs.families.spec import Parameter
from mrs.load.read import TORCH_DTYPES, file_rows, fill
from mrs.model.matrix import DenseMatrix, Matrix
from mrs.model.weights import ModelWeights
from mrs.plan.storage import Storage
from mrs.source.checkpoint import Checkpoint
from mrs.source.weights import Weights

#: Called with a parameter's name and the bytes that it takes, when it is in place.
OnBytes = Callable[[str, int], None]


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
            device, kept = devices[parameter.name], storage[parameter.name]
            tensor = _load_dense(files, parameter, kept, device)
            if parameter.role == "vector":
                vectors[parameter.name] = tensor
            else:
                matrices[parameter.name] = DenseMatrix(tensor)
            on_bytes(parameter.name, kept.size_bytes)
    return ModelWeights(matrices, vectors)


def _load_dense(
    files: Weights, parameter: Parameter, kept: Storage, device: torch.device
) -> Tensor:
    target = torch.empty(parameter.shape, dtype=TORCH_DTYPES[kept.format.name], device=device)
    row = 0
    for piece in parameter.pieces:
        info = files.checkpoint.tensors[piece.tensor]
        data = file_rows(files, info, piece.rows)
        part = target[row : row + data.shape[0]]
        fill(part, data, info.format)
        row += data.shape[0]
        if piece.plus_one:
            part += 1
        del data
        files.release(info)
    if row != parameter.shape[0]:
        raise NotReadable(f"{parameter.name} has {row} rows instead of {parameter.shape[0]}")
    return target
