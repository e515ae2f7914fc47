"""Load a model's weights from its files to their devices, one parameter after another.

For each parameter: `TensorReader` reads rows of the file, chunk by chunk, and a target decodes,
packs or copies them into the parameter's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import torch
from torch import Tensor

from mrs.formats import Format
from mrs.kernels.cpu.heap import freed_memory_returned, keep_freed_memory, use_one_heap
from mrs.load.chunk_memory import chunk_memory
from mrs.load.layer_files import LayerFiles
from mrs.load.merge_adapters import MergedRows
from mrs.load.tensor_reader import TensorReader
from mrs.model.model_weights import ModelWeights
from mrs.quantization.cuda_kernels import try_cuda_kernels
from mrs.quantization.gguf.codec import WEIGHTED, requantize
from mrs.quantization.matrix import Matrix, permuted
from mrs.quantization.storage import Storage
from mrs.quantization.targets import (
    TARGETS,
    DenseTarget,
    Memory,
    Target,
    cpu_arena,
    packed_rows,
)
from mrs.source.checkpoint import Checkpoint
from mrs.source.weights import Weights
from mrs.weights.binding import Parameter

#: Called with a parameter's name and its bytes in memory when the parameter is loaded.
OnBytes = Callable[[str, int], None]


def load_weights(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    storage: Mapping[str, Storage],
    devices: Mapping[str, torch.device],
    on_bytes: OnBytes,
    importance: Mapping[str, Tensor] | None = None,
    layer_files: LayerFiles | None = None,
) -> ModelWeights:
    """Every parameter on its device, in the form of its `storage`.

    `storage`, `devices` and the `importance` of columns are keyed by parameter name. In addition to
    the weights, memory holds one chunk of one tensor at a time, with GPUs two, and nothing of them
    afterwards. What `layer_files` name stays on disk; then their `layers` read it.
    """
    kept = [each for each in parameters if layer_files is None or each.name not in layer_files]
    arena = cpu_arena(storage, {each.name: devices[each.name] for each in kept})
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    memory = chunk_memory(devices.values())
    with freed_memory_returned(), closing(memory), Weights(checkpoint) as files:
        reader = TensorReader(files, memory)

        def load(parameter: Parameter, memory: Memory, is_there: bool = False) -> Target:
            name, stored_as = parameter.name, storage[parameter.name]
            weigher = _Weigher(stored_as.format, (importance or {}).get(name))
            order = None
            if stored_as.is_permuted:
                order = reader.group_order(parameter.pieces, parameter.columns)
                weigher.sort(order)
            target = TARGETS[stored_as.form](parameter, stored_as, devices[name], memory)
            if not is_there:
                _fill(target, parameter, reader, weigher, permutes=order is not None)
            if isinstance(target, DenseTarget) and parameter.role in ("vector", "dense"):
                vectors[name] = target.tensor
            else:
                matrix = target.matrix()
                matrices[name] = matrix if order is None else permuted(matrix, order)
            return target

        def pack_rows(parameter: Parameter) -> Iterator[Tensor]:
            wanted = storage[parameter.name].format
            weigher = _Weigher(wanted, (importance or {}).get(parameter.name))
            (piece,) = parameter.pieces
            for rows, stored in reader.chunks(piece, parameter.columns):
                yield packed_rows(*weigher.quantized(rows, stored), wanted)

        for parameter in kept:
            load(parameter, arena)
            on_bytes(parameter.name, storage[parameter.name].size_bytes)
        if layer_files is not None:
            layer_files.load(parameters, storage, load, pack_rows)
            matrices.update(layer_files.tables)
    return ModelWeights(matrices, vectors)


def load_to_run(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    storage: Mapping[str, Storage],
    devices: Mapping[str, torch.device],
    on_bytes: OnBytes,
    importance: Mapping[str, Tensor] | None = None,
    layer_files: LayerFiles | None = None,
) -> ModelWeights:
    """`load_weights` in a process that then computes: its heap keeps what prompts free.

    Kernels that have not run on these GPUs yet are tried before.
    """
    try_cuda_kernels(
        (devices[each.name], storage[each.name].format.name, each.shape) for each in parameters
    )
    use_one_heap()
    weights = load_weights(
        checkpoint, parameters, storage, devices, on_bytes, importance, layer_files
    )
    keep_freed_memory()
    return weights


class _Weigher:
    """Quantizes rows by the importance of their columns (C,), if that is known."""

    def __init__(self, wanted: Format, importance: Tensor | None) -> None:
        self._wanted = wanted
        self._importance = importance if wanted.name in WEIGHTED else None

    def sort(self, order: Tensor) -> None:
        """Use the importance of columns in this order."""
        if self._importance is not None:
            self._importance = self._importance[order].contiguous()

    def quantized(self, rows: Tensor, stored: Format) -> tuple[Tensor, Format]:
        """Rows of the format `stored`, or of the wanted one."""
        if self._importance is None or stored == self._wanted:
            return rows, stored
        return requantize(rows, stored, self._wanted, self._importance), self._wanted


def _fill(
    target: Target,
    parameter: Parameter,
    reader: TensorReader,
    weigher: _Weigher,
    *,
    permutes: bool,
) -> None:
    merged = MergedRows(parameter, reader)
    for piece in parameter.pieces:
        for rows, stored in reader.chunks(piece, parameter.columns, permutes=permutes):
            target.add(*weigher.quantized(*merged.add(rows, stored)), piece.transform)
