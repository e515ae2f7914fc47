"""The inputs of a decode step at addresses that never change, as a CUDA graph needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrs.engine.sampling.on_device import ROW_VALUES
from mrs.kernels.paged import AttentionBatch, Queries
from mrs.model.batch import ForwardBatch


class StaticShape(NamedTuple):
    """Rows of a step, block tables in a row (one for each pool), and blocks in a table."""

    rows: int
    pools: int
    blocks: int


class StaticInputs:
    """Everything that changes from step to step, in one buffer on the device: one copy fills it.

    Rows without a sequence repeat the first one, and write the same keys to the same slot.
    """

    def __init__(self, shape: StaticShape, device: torch.device) -> None:
        rows, pools, blocks = self._shape = shape
        wide, narrow = (2 + pools + ROW_VALUES) * rows, (1 + pools * blocks) * rows
        self._host = np.zeros(8 * wide + 4 * narrow, np.uint8)
        self._device = torch.zeros(len(self._host), dtype=torch.uint8, device=device)
        ids, values, lengths, tables = _fields(torch.from_numpy(self._host), shape)
        self._ids, self._values = ids.numpy(), values.numpy()
        self._lengths, self._tables = lengths.numpy(), tables.numpy()
        ids, self.values, lengths, tables = _fields(self._device, shape)
        self._token_ids, self._positions = ids[0], ids[1]
        starts = torch.arange(rows + 1, dtype=torch.int32)
        self._attention = tuple(
            AttentionBatch(starts, lengths, tables[pool], ids[2 + pool]) for pool in range(pools)
        )

    def write(self, batch: ForwardBatch, row_values: Sequence[Sequence[float]]) -> None:
        """Copy a batch of sequences with one new token each, and the sampling values of each."""
        count = len(row_values)
        self._ids[0, :count] = batch.token_ids.numpy()
        self._ids[1, :count] = batch.positions.numpy()
        self._values[:, :count] = np.array(row_values, np.float64).T
        self._lengths[:count] = batch.attention[0].context_lens.numpy()
        for pool, group in enumerate(batch.attention):
            tables = group.block_tables.numpy()
            self._ids[2 + pool, :count] = group.slot_mapping.numpy()
            self._tables[pool, :count, : tables.shape[1]] = tables
        self._ids[:, count:], self._values[:, count:] = self._ids[:, :1], self._values[:, :1]
        self._lengths[count:], self._tables[:, count:] = self._lengths[0], self._tables[:, :1]
        self._device.copy_(torch.from_numpy(self._host))

    def batch(self) -> ForwardBatch:
        """A batch of views of the buffer. It is new: nothing is remembered of other steps."""
        rows = self._shape.rows
        return ForwardBatch(
            self._token_ids,
            self._positions.view(-1),
            [Queries(slice(row, row + 1), 1) for row in range(rows)],
            [1] * rows,
            tuple(replace(group) for group in self._attention),
            range(rows),
        )


def _fields(buffer: Tensor, shape: StaticShape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of a buffer: ids int64 (2 + pools, rows), values float64 (ROW_VALUES, rows), lengths
    int32 (rows,) and tables int32 (pools, rows, blocks).

    The ids are token ids, positions, and the slots of each pool.
    """
    rows, pools, blocks = shape
    id_bytes, value_bytes = 8 * (2 + pools) * rows, 8 * ROW_VALUES * rows
    ids, values, narrow = torch.split(
        buffer, [id_bytes, value_bytes, len(buffer) - id_bytes - value_bytes]
    )
    lengths, tables = torch.split(narrow.view(torch.int32), [rows, pools * rows * blocks])
    return (
        ids.view(torch.int64).view(2 + pools, rows),
        values.view(torch.float64).view(ROW_VALUES, rows),
        lengths,
        tables.view(pools, rows, blocks),
    )
