"""LoRA adapters that stay apart from the weights: each sequence of a batch has its own, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.architecture.unmerged_adapter import UnmergedAdapter, down_name, up_name
from mrs.kernels.dense_products import linear
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.quantization.matrix import Matrix


class AdapterRows:
    """Which rows of the batch that is computed belong to which adapter."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._on_device: dict[torch.device, dict[int, Tensor]] = {}

    def select(self, batch: ForwardBatch) -> None:
        """Use the adapters of a batch until the next one is selected."""
        rows: dict[int, list[int]] = {}
        for adapter, (span, _) in zip(batch.adapter_ids or (), batch.queries, strict=True):
            if adapter is not None:
                rows.setdefault(adapter, []).extend(range(span.start, span.stop))
        self._rows = {adapter: torch.tensor(each) for adapter, each in rows.items()}
        self._on_device = {}

    def on(self, device: torch.device) -> Mapping[int, Tensor]:
        """The rows (R,) of each adapter, as indices on a device."""
        if device not in self._on_device:
            moved = {adapter: rows.to(device) for adapter, rows in self._rows.items()}
            self._on_device[device] = moved
        return self._on_device[device]


class LowRank(NamedTuple):
    """The matrices of one adapter for one slot: down (rank, columns), up (rows, rank)."""

    down: Tensor
    up: Tensor
    scale: float


class AdaptedMatrix:
    """A weight with the low-rank matrices of adapters, by their index, for some rows of a batch."""

    def __init__(
        self, matrix: Matrix, adapters: Mapping[int, LowRank], selected: AdapterRows
    ) -> None:
        self._matrix = matrix
        self._adapters = adapters
        self._selected = selected
        self.device = matrix.device
        self.shape = matrix.shape

    @property
    def nbytes(self) -> int:
        return self._matrix.nbytes

    def matmul(self, x: Tensor) -> Tensor:
        y = self._matrix.matmul(x)
        for index, rows in self._selected.on(x.device).items():
            if (adapter := self._adapters.get(index)) is not None:
                update = linear(linear(x[rows], adapter.down), adapter.up)
                y.index_add_(0, rows, update.to(y.dtype), alpha=adapter.scale)
        return y

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self._matrix.rows(ids, dtype)


def adapted_weights(
    weights: ModelWeights, adapters: Sequence[UnmergedAdapter], selected: AdapterRows
) -> ModelWeights:
    """The same weights, with the matrices of adapters for the rows that are selected."""

    def matrix(slot: str) -> Matrix:
        matrices = {
            index: LowRank(
                weights.vector(down_name(slot, adapter.name)),
                weights.vector(up_name(slot, adapter.name)),
                adapter.scales[slot],
            )
            for index, adapter in enumerate(adapters)
            if slot in adapter.scales
        }
        return AdaptedMatrix(weights.matrix(slot), matrices, selected)

    slots = {slot for adapter in adapters for slot in adapter.scales}
    return weights.with_matrices({f"{slot}.weight": matrix(slot) for slot in slots})
