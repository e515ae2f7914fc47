"""Attention over a paged KV cache on an NVIDIA GPU, by the Triton kernels."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import AttentionBatch, PagedKV, as_bytes

#: Keys of a sequence that one program of a decode step reads. It is the same for all lengths, so
#: that a result does not depend on the batch.
SPLIT_KEYS = 256

#: Counters that all steps share: one for each key head and sequence. A step with more has its own.
_MOST_COUNTERS = 1 << 16


@dataclass(frozen=True)
class TileSize:
    """What a program computes: `queries` with `heads` of a group, over `keys` at a time."""

    heads: int
    queries: int
    keys: int
    #: Steps of the loop over keys that are in shared memory at a time.
    stages: int = 2

    @property
    def rows(self) -> int:
        """Rows of its matrices; the GPU's matrix units need 16."""
        return max(16, self.heads * self.queries)

    @classmethod
    def of(cls, head_dim: int, group: int, dtype: torch.dtype) -> TileSize:
        """For prompts whose products are of type `dtype`.

        Larger heads and values leave registers and shared memory for fewer rows.
        """
        rows = 64 if head_dim <= 128 else 32 if head_dim <= 256 else 16
        is_wide = dtype.itemsize == 4
        if is_wide:
            rows = max(rows // 2, 16)
        heads = min(_power_of_two(group), rows)
        return cls(heads, rows // heads, rows, 1 if is_wide and head_dim > 512 else 2)


class TritonAttention:
    """One call for all sequences, which reads keys and values where they are.

    Sequences with one new token are computed by splits of their keys, the others by tiles of their
    queries.
    """

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        cache.write(batch.slot_mapping, (k,) if v is None else (k, v))

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        options: AttentionOptions,
    ) -> Tensor:
        keys = cache.keys
        dtype = q.dtype if keys.dtype.itemsize == 1 else keys.dtype
        size = TileSize.of(q.shape[2], q.shape[1] // keys.shape[1], dtype)
        tiles = batch.tiles(size.queries)
        out = q.new_empty(*q.shape[:2], cache.value_dim)
        sinks = None if options.sinks is None else options.sinks.float()
        constants = _constants(q, cache, options, batch.device_ends)
        inputs = _Inputs(q.contiguous(), cache, batch, options.scale, sinks)
        # Triton launches kernels on torch's current device.
        with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
            if len(tiles.decode):
                _decode(inputs, tiles.decode, out, size, constants)
            if len(tiles.prefill):
                _prefill(inputs, tiles.prefill, out, size, constants)
        return out.flatten(1)


@dataclass(frozen=True)
class _Inputs:
    q: Tensor
    cache: PagedKV
    batch: AttentionBatch
    scale: float
    sinks: Tensor | None


def _prefill(
    inputs: _Inputs, tiles: Tensor, out: Tensor, size: TileSize, constants: dict[str, Any]
) -> None:
    _launch(inputs, tiles, (out,) * 5, size, 1, {**constants, "SPLIT": 0})


def _decode(
    inputs: _Inputs, tiles: Tensor, out: Tensor, size: TileSize, constants: dict[str, Any]
) -> None:
    size = replace(size, queries=1)
    tokens = inputs.batch.block_tables.shape[1] * inputs.cache.block_tokens
    splits, (rows, heads, value_dim) = -(-tokens // SPLIT_KEYS), out.shape
    partial = out.new_empty(splits, rows, heads, value_dim, dtype=torch.float32)
    largest, sums = partial.new_empty(2, splits, rows, heads)
    arrived = _counters(out.device, len(tiles) * heads)
    constants = {**constants, "SPLIT": SPLIT_KEYS}
    _launch(inputs, tiles, (out, partial, largest, sums, arrived), size, splits, constants)


def _counters(device: torch.device, count: int) -> Tensor:
    """`count` zeros int32, which the kernel leaves as zeros."""
    if count > _MOST_COUNTERS:
        return torch.zeros(count, dtype=torch.int32, device=device)
    return _shared_counters(device)


@cache
def _shared_counters(device: torch.device) -> Tensor:
    """For all layers: one step after another reads them, on one stream."""
    return torch.zeros(_MOST_COUNTERS, dtype=torch.int32, device=device)


def _launch(
    inputs: _Inputs,
    tiles: Tensor,
    outs: tuple[Tensor, ...],
    size: TileSize,
    splits: int,
    constants: dict[str, Any],
) -> None:
    from mrs.kernels.triton.attention import attend_tiles

    q, cache, batch = inputs.q, inputs.cache, inputs.batch
    keys, values = as_bytes(cache.keys), as_bytes(cache.values)
    head_tiles = -(-constants["GROUP"] // size.heads)
    attend_tiles[(len(tiles), keys.shape[1] * head_tiles, splits)](
        q,
        keys,
        values,
        batch.block_tables,
        batch.device_lengths,
        q if batch.device_ends is None else batch.device_ends,
        tiles,
        q if inputs.sinks is None else inputs.sinks,
        *outs,
        batch.block_tables.shape[1],
        len(q),
        *keys.stride()[:3],
        *values.stride()[:3],
        inputs.scale,
        BLOCK=cache.block_tokens,
        ROWS=size.rows,
        TILE_HEADS=size.heads,
        KEYS=size.keys,
        num_warps=8 if size.rows == 64 and q.shape[2] > 64 else 4,  # else registers run out
        num_stages=size.stages,
        **constants,
    )


def _constants(
    q: Tensor, cache: PagedKV, options: AttentionOptions, ends: Tensor | None
) -> dict[str, Any]:
    """What the kernels are compiled for."""
    heads, head_dim = q.shape[1:]
    d1, d2 = _two_parts(head_dim)
    v1, v2 = _two_parts(cache.value_dim)
    return {
        "HEADS": heads,
        "GROUP": heads // cache.keys.shape[1],
        "DIM": head_dim,
        "VALUE_DIM": cache.value_dim,
        "D1": d1,
        "D2": d2,
        "V1": v1,
        "V2": v2,
        "WINDOW": options.window or 0,
        "SOFTCAP": options.softcap or 0.0,
        "HAS_ENDS": ends is not None,
        "HAS_SINKS": options.sinks is not None,
    }


def _two_parts(size: int) -> tuple[int, int]:
    """A power of two and another, or 0, that add up to at least `size`; none is below 16."""
    first = max(16, 1 << size.bit_length() - 1)
    rest = size - first
    return (first, max(16, _power_of_two(rest))) if rest > 0 else (first, 0)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
