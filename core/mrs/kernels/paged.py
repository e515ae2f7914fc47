"""A paged KV cache of one layer, and the block tables of a batch."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.huge_pages import HugePageArena
from mrs.kernels.kv_codes import QUANTIZED_BLOCK_TOKENS, KVFormats, KVType, RowCodes
from mrs.kernels.native_structs import CACHE_TYPES, NativeBatch, NativeKV

#: Types whose largest value keys and values may exceed; they become it.
_NARROW = (torch.float16, torch.float8_e4m3fn)


def as_bytes(x: Tensor) -> Tensor:
    """A view of floats of 8 bits as bytes, which all operations and GPUs know; others unchanged."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def computable(x: Tensor) -> Tensor:
    """The same values in a type that torch computes with: bf16 has all floats of 8 bits."""
    return x.bfloat16() if x.dtype == torch.float8_e4m3fn else x


class PagedKV:
    """One layer's keys (blocks, KV, block tokens, D) and values of all sequences.

    With `values_in_keys`, the first `value_dim` elements of a key are the value. Blocks that were
    never written are never touched: a system that allocates memory lazily spends none on them.
    Quantized keys and values are planes of bytes (blocks, KV, block tokens, row bytes), whose rows
    `codes` reads. Some blocks have a slot of `rests`, (slots, KV, block tokens, row bytes): what
    codes leave, as `kv_codes` says. `rest_slots` (blocks) int32 has each block's slot, or -1.
    """

    def __init__(
        self,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        block_tokens: int,
        dtype: KVType,
        device: torch.device,
        values_in_keys: bool = False,
        first_is_whole: bool = True,
    ) -> None:
        """`block_tokens` is a power of two.

        Quantized keys and values are apart, their heads are multiples of 32, and their blocks have
        QUANTIZED_BLOCK_TOKENS tokens. `first_is_whole` says whether all tokens attend to the rests
        of the first block.
        """
        self.block_tokens = block_tokens
        self.device = device
        self.value_dim = value_dim
        self.first_is_whole = first_is_whole
        self.codes: tuple[RowCodes, ...] = ()
        dims: tuple[int, ...] = (key_dim,) if values_in_keys else (key_dim, value_dim)
        if isinstance(dtype, KVFormats):
            keys = RowCodes(dtype.keys, key_dim, are_values=False)
            self.codes = keys, RowCodes(dtype.values, value_dim, are_values=True)
            assert block_tokens == QUANTIZED_BLOCK_TOKENS
            dims, dtype = tuple(each.row_bytes for each in self.codes), torch.uint8
        rests = [each.rests.row_bytes for each in self.codes]
        tensors = [
            torch.empty(0, kv_heads, block_tokens, dim, dtype=dtype, device=device)
            for dim in (*dims, *rests)
        ]
        self.rest_slots = torch.empty(0, dtype=torch.int32)
        self._set(tensors[: len(dims)], tensors[len(dims) :])

    @property
    def keys(self) -> Tensor:
        return self.tensors[0]

    @property
    def values(self) -> Tensor:
        return self.tensors[-1][..., : self.value_dim]

    @property
    def block_bytes(self) -> int:
        return sum(math.prod(x.shape[1:]) * x.element_size() for x in self.tensors)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the rests of a block."""
        return sum(math.prod(x.shape[1:]) for x in self.rests)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self.tensors, *self.rests))

    def resize(self, blocks: int, slots: int = 0) -> None:
        """Reallocate for `blocks` blocks and `slots` of rests.

        The contents of those in both sizes stay. If memory is missing, nothing has changed.
        """
        resized = self._resized(blocks, slots)
        kept = self.rest_slots[:blocks]
        self.rest_slots = torch.full((blocks if self.codes else 0,), -1, dtype=torch.int32)
        self.rest_slots[: len(kept)] = kept
        self._set(resized[: len(self.tensors)], resized[len(self.tensors) :])

    def attach(self, block: int, slot: int) -> None:
        """Let the rests of a block be in a slot; none for -1."""
        self.rest_slots[block] = slot

    def _set(self, tensors: Sequence[Tensor], rests: Sequence[Tensor]) -> None:
        self.tensors, self.rests = tuple(tensors), tuple(rests)
        self.native: NativeKV | None = None
        #: The address of the C struct; only on a CPU.
        self.address: int | None = None
        shift = self.block_tokens.bit_length() - 1
        if self.codes:
            self.native = NativeKV.of_codes(
                self.tensors, self.codes, shift, self.rests, self.rest_slots, self.first_is_whole
            )
        elif self.device.type == "cpu" and self.keys.dtype in CACHE_TYPES:
            self.native = NativeKV.of(self.keys, self.values, shift)
        if self.native is not None:
            self.address = ctypes.addressof(self.native)

    def _resized(self, blocks: int, slots: int) -> tuple[Tensor, ...]:
        before = (*self.tensors, *self.rests)
        shapes = [(blocks, *x.shape[1:]) for x in self.tensors]
        shapes += [(slots, *x.shape[1:]) for x in self.rests]
        if self.device.type == "cpu":
            dtype = self.keys.dtype
            arena = HugePageArena([math.prod(shape) * dtype.itemsize for shape in shapes])
            resized = tuple(arena.empty(shape, dtype) for shape in shapes)
        else:
            resized = tuple(x.new_empty(shape) for x, shape in zip(before, shapes, strict=True))
        for new, old in zip(resized, before, strict=True):
            new[: len(old)] = old[: len(new)]
        return resized

    def copy_block(self, source: int, target: int) -> None:
        for x in self.tensors:
            x[target].copy_(x[source])
        for x in self.rests:
            slots = self.rest_slots
            if min(slots[source], slots[target]) >= 0:
                x[slots[target]].copy_(x[slots[source]])

    def read(self, blocks: Tensor, start: int, end: int) -> tuple[Tensor, ...]:
        """Copy the tokens `start` to `end` of the sequence with these blocks: (KV, T, D).

        Those of a quantized cache are rows of bytes.
        """
        first, size = start // self.block_tokens, self.block_tokens
        read_blocks = blocks[first : -(-end // size)]
        tokens = slice(start - first * size, end - first * size)
        codes = self.codes or itertools.repeat(None)
        return tuple(
            _tokens(x, read_blocks, own)[:, tokens]
            for x, own in zip(self.tensors, codes, strict=False)
        )

    def read_rests(self, blocks: Tensor, start: int, end: int) -> tuple[Tensor, ...]:
        """As `read`, the rows of rests; blocks without rests give any."""
        slots = self.rest_slots[blocks].long().clamp(min=0)
        first, size = start // self.block_tokens, self.block_tokens
        tokens = slice(start - first * size, end - first * size)
        read_slots = slots[first : -(-end // size)]
        return tuple(
            _tokens(x, read_slots, own.rests)[:, tokens]
            for x, own in zip(self.rests, self.codes, strict=True)
        )

    def read_floats(
        self, blocks: Tensor, start: int, end: int, own_block: int | None = None
    ) -> tuple[Tensor, ...]:
        """As `read`, in a type that torch computes with.

        Of quantized ones, what a token in the sequence's block `own_block` attends to; by default
        only what codes mean.
        """
        read = self.read(blocks, start, end)
        if not self.codes:
            return tuple(map(computable, read))
        floats = tuple(own.decode(x) for own, x in zip(self.codes, read, strict=True))
        if own_block is None:
            return floats
        index = torch.arange(start, end) // self.block_tokens
        is_whole = (index >= own_block) | ((index == 0) & self.first_is_whole)
        is_whole &= self.rest_slots[blocks[index]] >= 0
        rests = self.read_rests(blocks, start, end)
        return tuple(
            torch.where(is_whole[:, None], own.decode_whole(x, rest), x_floats)
            for own, x, rest, x_floats in zip(self.codes, read, rests, floats, strict=True)
        )

    def write(self, slots: Tensor, tokens: Sequence[Tensor]) -> None:
        """Write keys, and values if the cache stores them apart, (N, KV, D), to the slots (N).

        They are floats, or what `read` has returned. Blocks of quantized floats have rests.
        """
        blocks, offsets = slots // self.block_tokens, slots % self.block_tokens
        if self.codes:
            rests: list[Tensor] = []
            for x, own, new in zip(self.tensors, self.codes, tokens, strict=True):
                rows = new if new.dtype == torch.uint8 else own.encode(new)
                if new.dtype != torch.uint8:
                    rests.append(own.encode_rests(new, rows))
                _write_rows(x, own, blocks, offsets, rows)
            if rests:
                self.write_rests(slots, rests)
            return
        for x, new in zip(self.tensors, tokens, strict=True):
            if x.dtype in _NARROW:
                largest = torch.finfo(x.dtype).max
                new = computable(new).clamp(-largest, largest)
            as_bytes(x)[blocks, :, offsets] = as_bytes(new.to(x.device, x.dtype))

    def write_rests(self, slots: Tensor, rests: Sequence[Tensor]) -> None:
        """Write rows of rests (N, KV, row bytes) of the tokens in these slots (N)."""
        blocks = self.rest_slots[slots // self.block_tokens].long()
        if (blocks < 0).any():
            raise ValueError("a block has no slot for the rests of its codes")
        for x, own, rows in zip(self.rests, self.codes, rests, strict=True):
            _write_rows(x, own.rests, blocks, slots % self.block_tokens, rows)


def _write_rows(x: Tensor, codes: RowCodes, blocks: Tensor, offsets: Tensor, rows: Tensor) -> None:
    """Write rows (N, KV, row bytes) to the planes x (blocks, KV, block tokens, row bytes)."""
    used = torch.tensor(sorted({*blocks.tolist()}), dtype=torch.int64)
    planes = codes.rows(x[used])
    planes[torch.searchsorted(used, blocks), :, offsets] = rows
    x[used] = codes.planes(planes)


def _tokens(x: Tensor, blocks: Tensor, codes: RowCodes | None) -> Tensor:
    """(blocks, KV, block tokens, D) to (KV, S, D), in the order of `blocks`."""
    selected = as_bytes(x).index_select(0, blocks.to(x.device))
    if codes is not None:
        selected = codes.rows(selected)
    return selected.transpose(0, 1).reshape(x.shape[1], -1, x.shape[3]).view(x.dtype)


class Queries(NamedTuple):
    """The rows of one sequence's new tokens, and its length with them (`context`)."""

    rows: slice
    context: int


class Tiles(NamedTuple):
    """Tiles of a batch's queries, (tiles, 3) int32: sequence, first row, end of its rows.

    Sequences with one new token are in `decode`, the others in `prefill`.
    """

    decode: Tensor
    prefill: Tensor


@dataclass(frozen=True)
class AttentionBatch:
    """N new tokens of B sequences, one sequence after another, and the blocks of their keys.

    `query_start`     (B + 1) int32 on the CPU: the first row of each sequence, then N.
    `context_lens`    (B) int32 on the CPU: the length of each sequence, new tokens included.
    `block_tables`    (B, P) int32: the blocks of each sequence in order.
    `slot_mapping`    (N) int64: block * block tokens + offset in the block, where each new token
                      is written.
    `attention_ends`  (N) int64 on the CPU: the last position that each token attends to; None
                      means its own.

    `tile_cache` has what `tiles` returned. On a GPU whose graphs read it, a batch may have its
    lengths there too.
    """

    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    attention_ends: Tensor | None = None
    tile_cache: dict[int, Tiles] = field(default_factory=dict, compare=False)

    @cached_property
    def native(self) -> NativeBatch:
        """The same for native code. Raises ValueError for tensors of other shapes and types."""
        return NativeBatch.of(
            self.query_start,
            self.context_lens,
            self.block_tables,
            self.slot_mapping,
            self.attention_ends,
        )

    @property
    def address(self) -> int:
        return ctypes.addressof(self.native)

    @cached_property
    def device_lengths(self) -> Tensor:
        """`context_lens` on the device of the block tables."""
        return self.context_lens.to(self.block_tables.device)

    @cached_property
    def device_ends(self) -> Tensor | None:
        """`attention_ends` on the device of the block tables."""
        ends = self.attention_ends
        return None if ends is None else ends.to(self.block_tables.device)

    @cached_property
    def causal(self) -> AttentionBatch:
        """This batch for layers in which no token attends to later ones."""
        return self if self.attention_ends is None else replace(self, attention_ends=None)

    @cached_property
    def chunked(self) -> dict[int, AttentionBatch]:
        """This batch for layers whose tokens attend to their own chunk, by size of the chunks."""
        return {}

    def tiles(self, most_queries: int) -> Tiles:
        """The queries cut into tiles of `most_queries` at most; known from `query_start` alone."""
        if most_queries not in self.tile_cache:
            bounds = list(itertools.pairwise(self.query_start.tolist()))
            starts = [(n, *each) for n, each in enumerate(bounds)]
            decode = [each for each in starts if each[2] - each[1] == 1]
            prefill = [
                (sequence, first, end)
                for sequence, start, end in starts
                if end - start > 1
                for first in range(start, end, most_queries)
            ]
            device = self.block_tables.device
            tables = (torch.tensor(x, dtype=torch.int32).view(-1, 3) for x in (decode, prefill))
            self.tile_cache[most_queries] = Tiles(*(table.to(device) for table in tables))
        return self.tile_cache[most_queries]

    @cached_property
    def queries(self) -> tuple[Queries, ...]:
        """The rows of each sequence."""
        starts = self.query_start.tolist()
        rows = (slice(*bounds) for bounds in itertools.pairwise(starts))
        return tuple(map(Queries, rows, self.context_lens.tolist()))

    def tables(self, block_tokens: int) -> Iterator[Tensor]:
        """The blocks of each sequence, without the padding of its row."""
        for table, (_, context) in zip(self.block_tables, self.queries, strict=True):
            yield table[: -(-context // block_tokens)]

    def on(self, device: torch.device) -> AttentionBatch:
        """The same batch with block tables and slots on `device`."""
        if self.slot_mapping.device == device:
            return self
        tables, slots = self.block_tables.to(device), self.slot_mapping.to(device)
        return replace(self, block_tables=tables, slot_mapping=slots, tile_cache={})
