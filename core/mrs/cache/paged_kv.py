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
        blocks = self._blocks()
        read = self.kv.read(blocks, first, end)
        if self.kv.codes:
            pieces = [self.kv.read_rests(blocks, *each) for each in self._with_rests(first, end)]
            rests = [torch.cat(each, dim=1) for each in zip(*pieces, strict=True)]
            read = (
                *read,
                *(rests or [x.new_empty(x.shape[1], 0, x.shape[3]) for x in self.kv.rests]),
            )
        return LayerSlice(first, {str(number): x for number, x in enumerate(read)})

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """The table has blocks for all tokens, or for those of the window."""
        start = self._table.first_token
        for piece in slices:
            if piece is None:
                continue
            tokens = piece.tensors["0"].shape[1]
            first, end = max(start, piece.first), min(piece.first + tokens, length)
            if first >= end:
                continue
            inside = slice(first - piece.first, end - piece.first)
            named = [piece.tensors[str(n)] for n in range(len(self.kv.tensors))]
            some = [x[:, inside].transpose(0, 1) for x in named]
            slots = torch.tensor(self._table.slots(first, end), device=self.device)
            self.kv.write(slots, some)
            self._restore_rests(piece, start, length)

    def _restore_rests(self, piece: LayerSlice, start: int, length: int) -> None:
        """Write what a piece has of the rests that the tokens `start` to `length` need."""
        end = piece.first + piece.tensors["0"].shape[1]
        needed = {at for each in self._with_rests(start, length) for at in range(*each)}
        positions = [at for each in self._with_rests(piece.first, end) for at in range(*each)]
        wanted = [n for n, at in enumerate(positions) if at in needed]
        if self.kv.codes and wanted:
            count = len(self.kv.tensors)
            named = [piece.tensors[str(count + n)] for n in range(len(self.kv.rests))]
            slots = [self._table.slots(positions[n], positions[n] + 1)[0] for n in wanted]
            self.kv.write_rests(torch.tensor(slots), [x[:, wanted].transpose(0, 1) for x in named])

    def _with_rests(self, first: int, end: int) -> list[tuple[int, int]]:
        """The ranges of tokens `first` to `end` that are exported with rests.

        Those of the sequence's first block, and of one that `end` is in the middle of.
        """
        size = self.kv.block_tokens
        ranges = [(first, min(size, end)), (max(first, size, end // size * size), end)]
        return [(start, stop) for start, stop in ranges if start < stop]

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        return self._table.serves(start, end, first, length)

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        with_rests = sum(stop - start for start, stop in self._with_rests(first, end))
        tokens = [end - first] * len(self.kv.tensors) + [with_rests] * len(self.kv.rests)
        wanted = {
            str(number): TensorShape(x.dtype, (x.shape[1], count, x.shape[3]))
            for number, (x, count) in enumerate(
                zip((*self.kv.tensors, *self.kv.rests), tokens, strict=True)
            )
        }
        return wanted == shapes

    def _blocks(self) -> Tensor:
        return torch.tensor(self._table.row(), dtype=torch.int64)
