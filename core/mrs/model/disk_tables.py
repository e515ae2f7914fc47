"""A matrix on disk of which a step needs some rows: the embeddings of its tokens.

Rows are read with the others of their group, which the native kernels interleave. No other row has
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait

import torch
from torch import Tensor

from mrs.errors import BadIndex, NotReadable
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.packed_layout import GROUP_ROWS
from mrs.process.direct_file import BLOCK_BYTES, DirectFile, DirectReader, checksums, whole_blocks
from mrs.quantization.layer_layout import TableLayout


class DiskTable:
    """A matrix that is looked up by rows, and multiplies nothing.

    `expected` are the CRC-32 of the pieces of each group. As many groups are read at a time as
    `memory` (uint8, from a block's address on) has room for.
    """

    device = torch.device("cpu")
    #: Its buffers are memory of the layers on disk.
    nbytes = 0

    def __init__(
        self,
        file: DirectFile,
        layout: TableLayout,
        expected: Sequence[Sequence[int]],
        memory: Tensor,
    ) -> None:
        self.shape = (layout.rows, layout.columns)
        self._file, self._layout, self._expected = file, layout, expected
        self._slots = list(memory.view(-1, layout.read_bytes))
        self._checked: set[int] = set()
        self._reader = DirectReader()

    def matmul(self, x: Tensor) -> Tensor:
        raise AssertionError("tables that multiply have memory")

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The values of the rows `ids` (N,), as (N, columns). Raises BadIndex and NotReadable."""
        for bad in ids[(ids < 0) | (ids >= self.shape[0])][:1].tolist():
            raise BadIndex("row", bad, self.shape[0])
        out = torch.empty(ids.numel(), self.shape[1], dtype=dtype)
        group_of, some = ids // GROUP_ROWS, len(self._slots)
        groups = sorted(set(group_of.tolist()))
        for first in range(0, len(groups), some):
            near = groups[first : first + some]
            for group, matrix in zip(near, self._read(near), strict=True):
                where = (group_of == group).nonzero().flatten()
                out[where] = matrix.rows(ids[where] % GROUP_ROWS, dtype)
        return out

    def _read(self, groups: Sequence[int]) -> list[PackedMatrix]:
        """These groups, as matrices that are valid until the next call. Raises NotReadable."""
        size = self._layout.group_bytes
        starts = [group * size for group in groups]
        reads = []
        for slot, start in zip(self._slots, starts, strict=False):
            first = start // BLOCK_BYTES * BLOCK_BYTES
            target = slot[: whole_blocks(start + size) - first].numpy().data
            reads += self._reader.begin(self._file, target, first)
        wait(reads)
        try:
            for read in reads:
                read.result()
            matrices = []
            for group, slot, start in zip(groups, self._slots, starts, strict=False):
                own = slot[start % BLOCK_BYTES :][:size]
                self._check(group, own)
                name = self._layout.format.name
                matrices.append(PackedMatrix.wrap(own, name, GROUP_ROWS, self.shape[1]))
        except OSError as error:
            raise NotReadable(
                "a row of a table cannot be read from disk",
                where=str(self._file.path),
                hint=f"{error.strerror or error}; start again to make the file anew",
            ) from error
        return matrices

    def _check(self, group: int, own: Tensor) -> None:
        """Of a group that was read for the first time. Raises OSError if it is damaged."""
        if group in self._checked:
            return
        if checksums(own.numpy().data) != list(self._expected[group]):
            self._file.path.unlink(missing_ok=True)
            raise OSError("its bytes are damaged")
        self._checked.add(group)
