"""Keys and values of one sequence in one attention layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mrs.cache.block_table import BlockTable
from mrs.cache.layer_cache import LayerSlice, TensorShape
from mrs.kernels.paged import PagedKV


class PagedKVCache:
    """Keeps every token, or those of a window, in blocks of `kv`, which all sequences share.

    The block table is that of all layers of `group`; `SequenceCache` extends and rewinds it.
    """

    is_state = False

    def __init__(self, kv: PagedKV, table: BlockTable, group: int) -> None:
        self.kv = kv
        self.group = group
        self._table = table

    @property
    def keeps_all(self) -> bool:
        return self._table.keeps_all

    @property
    def nbytes(self) -> int:
        return self._table.num_blocks * self.kv.block_bytes

    @property
    def device(self) -> torch.device:
        return self.kv.device

    def export(self, start: int, end: int) -> LayerSlice | None:
        first = max(start, self._table.first_token)
        if first >= end:
            return None
        read = self.kv.read(self._blocks(), first, end)
        return LayerSlice(first, {str(number): x for number, x in enumerate(read)})

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """The table has blocks for all tokens, or for those of the window."""
        start = self._table.first_token
        for piece in slices:
            if piece is None:
                continue
            tokens = next(iter(piece.tensors.values())).shape[1]
            first, end = max(start, piece.first), min(piece.first + tokens, length)
            if first >= end:
                continue
            inside = slice(first - piece.first, end - piece.first)
            named = [piece.tensors[str(n)] for n in range(len(self.kv.tensors))]
            some = [x[:, inside].transpose(0, 1) for x in named]
            slots = torch.tensor(self._table.slots(first, end), device=self.device)
            self.kv.write(slots, some)

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        return self._table.serves(start, end, first, length)

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        wanted = {
            str(number): TensorShape(x.dtype, (x.shape[1], end - first, x.shape[3]))
            for number, x in enumerate(self.kv.tensors)
        }
        return wanted == shapes

    def _blocks(self) -> Tensor:
        return torch.tensor(self._table.row(), dtype=torch.int64)
