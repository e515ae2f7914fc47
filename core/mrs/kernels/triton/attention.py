# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,misc"
"""Triton kernels of attention over a paged KV cache.

A program attends with a tile of queries of one sequence, and with some of the heads that share a
key head: its matrices have a row for each pair of a query and a head. Head sizes that are no powers
of two are cut into two parts that are: 80 = 64 + 16, 576 = 512 + 64.

Every sum is in float32 and in the order of the keys. A sequence's keys are split at multiples of
`SPLIT`, so a result does not depend on the other sequences of the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_part(base, rows, mask, first, SIZE: tl.constexpr, END: tl.constexpr):
    """Values `first` to `first + SIZE` of vectors at `rows` (R,), zeros from END on: (R, SIZE)."""
    columns = first + tl.arange(0, SIZE)
    inside = mask[:, None] & (columns < END)[None, :]
    return tl.load(base + rows[:, None] + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store_part(base, rows, mask, first, x, SIZE: tl.constexpr, END: tl.constexpr):
    columns = first + tl.arange(0, SIZE)
    inside = mask[:, None] & (columns < END)[None, :]
    tl.store(base + rows[:, None] + columns[None, :], x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def attend_tiles(
    q,  # (N, HEADS, DIM), contiguous
    keys,  # (blocks, KV, BLOCK, DIM), the last dimension contiguous
    values,  # (blocks, KV, BLOCK, VALUE_DIM)
    tables,  # (B, width) int32: the blocks of each sequence
    lengths,  # (B,) int32: tokens of each sequence
    ends,  # (N,) int64: the last position that each query attends to; only if HAS_ENDS
    tiles,  # (tiles, 3) int32: sequence, first row of the tile, end of the sequence's rows
    sinks,  # (HEADS,) float32; only if HAS_SINKS
    out,  # (N, HEADS, VALUE_DIM), or float32 (splits, N, HEADS, VALUE_DIM) if SPLIT
    largest,  # float32 (splits, N, HEADS): the largest score; only if SPLIT
    sums,  # float32 (splits, N, HEADS): the sum of exp(score - largest); only if SPLIT
    width,
    num_rows,
    key_block,
    key_head,
    key_token,
    value_block,
    value_head,
    value_token,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    V1: tl.constexpr,
    V2: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_ENDS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(2)
    HEAD_TILES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    kv_head = tl.program_id(1) // HEAD_TILES
    sequence = tl.load(tiles + 3 * tile)
    first_row = tl.load(tiles + 3 * tile + 1)
    end_row = tl.load(tiles + 3 * tile + 2)
    length = tl.load(lengths + sequence)

    index = tl.arange(0, ROWS)
    row = first_row + index // TILE_HEADS
    in_group = (tl.program_id(1) % HEAD_TILES) * TILE_HEADS + index % TILE_HEADS
    head = kv_head * GROUP + in_group
    is_query = (row < end_row) & (in_group < GROUP) & (index // TILE_HEADS < ROWS // TILE_HEADS)
    position = length - end_row + row
    last = position
    if HAS_ENDS:
        last = tl.load(ends + row, mask=is_query, other=0).to(tl.int32)

    # The keys of this program: from `first_key`, a multiple of KEYS, to `end_key`.
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(length - end_row + first_row - WINDOW + 1, 0) // KEYS * KEYS
    end_key = length
    if not HAS_ENDS:
        end_key = tl.minimum(length, length - end_row + first_row + ROWS // TILE_HEADS)
    if SPLIT > 0:
        first_key = tl.maximum(first_key, split * SPLIT)
        end_key = tl.minimum(end_key, (split + 1) * SPLIT)
        if first_key >= end_key:
            return

    q_rows = (row * HEADS + head) * DIM
    q1 = _load_part(q, q_rows, is_query, 0, D1, DIM).to(keys.dtype.element_ty)
    if D2 > 0:
        q2 = _load_part(q, q_rows, is_query, D1, D2, DIM).to(keys.dtype.element_ty)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc1 = tl.zeros((ROWS, V1), tl.float32)
    if V2 > 0:
        acc2 = tl.zeros((ROWS, V2), tl.float32)
    for start in range(first_key, end_key, KEYS):
        key = start + tl.arange(0, KEYS)
        is_key = key < length
        block = tl.load(tables + sequence * width + key // BLOCK, mask=is_key, other=0).to(tl.int64)
        k_rows = block * key_block + kv_head * key_head + (key % BLOCK) * key_token
        k1 = _load_part(keys, k_rows, is_key, 0, D1, DIM)
        scores = tl.dot(q1, tl.trans(k1), input_precision="ieee")
        if D2 > 0:
            k2 = _load_part(keys, k_rows, is_key, D1, D2, DIM)
            scores += tl.dot(q2, tl.trans(k2), input_precision="ieee")
        scores = scores * scale
        if SOFTCAP > 0:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1)
            scores = SOFTCAP - 2 * SOFTCAP / (tl.exp(scores * (2 / SOFTCAP)) + 1)
        visible = is_key[None, :] & (key[None, :] <= last[:, None])
        if WINDOW > 0:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A row without any visible key so far has no finite score to subtract.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - shift[:, None])
        shrink = tl.exp(best - shift)
        total = total * shrink + tl.sum(weights, 1)
        best = new_best
        v_rows = block * value_block + kv_head * value_head + (key % BLOCK) * value_token
        v1 = _load_part(values, v_rows, is_key, 0, V1, VALUE_DIM)
        weights = weights.to(values.dtype.element_ty)
        acc1 = acc1 * shrink[:, None] + tl.dot(weights, v1, input_precision="ieee")
        if V2 > 0:
            v2 = _load_part(values, v_rows, is_key, V1, V2, VALUE_DIM)
            acc2 = acc2 * shrink[:, None] + tl.dot(weights, v2, input_precision="ieee")

    if SPLIT > 0:
        slot = (split * num_rows + row).to(tl.int64) * HEADS + head
        tl.store(largest + slot, best, mask=is_query)
        tl.store(sums + slot, total, mask=is_query)
    else:
        slot = row.to(tl.int64) * HEADS + head
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=is_query, other=0.0)
            new_best = tl.maximum(best, sink)
            shrink = tl.exp(best - new_best)
            total = total * shrink + tl.exp(sink - new_best)
            acc1 = acc1 * shrink[:, None]
            if V2 > 0:
                acc2 = acc2 * shrink[:, None]
        divisor = tl.where(is_query, total, 1.0)
        acc1 = acc1 / divisor[:, None]
        if V2 > 0:
            acc2 = acc2 / divisor[:, None]
    _store_part(out, slot * VALUE_DIM, is_query, 0, acc1, V1, VALUE_DIM)
    if V2 > 0:
        _store_part(out, slot * VALUE_DIM, is_query, V1, acc2, V2, VALUE_DIM)


@triton.jit
def combine_splits(
    partial,  # float32 (splits, N, HEADS, VALUE_DIM)
    largest,  # float32 (splits, N, HEADS)
    sums,  # float32 (splits, N, HEADS)
    lengths,  # (B,) int32
    tiles,  # (tiles, 3) int32, of one row each
    sinks,  # (HEADS,) float32; only if HAS_SINKS
    out,  # (N, HEADS, VALUE_DIM)
    num_rows,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """The sum of a row's splits, one after another, for one head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + tl.load(tiles + 3 * tile))
    row = tl.load(tiles + 3 * tile + 1)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // KEYS * KEYS // SPLIT
    best = float("-inf")
    total = 0.0
    if HAS_SINKS:
        best = tl.load(sinks + head).to(tl.float32)
        total = 1.0
    columns = tl.arange(0, VALUE_PAD)
    inside = columns < VALUE_DIM
    acc = tl.zeros((VALUE_PAD,), tl.float32)
    for split in range(first, (length + SPLIT - 1) // SPLIT):
        slot = (split * num_rows + row).to(tl.int64) * HEADS + head
        split_best = tl.load(largest + slot)
        new_best = tl.maximum(best, split_best)
        shrink = tl.exp(best - new_best)
        grow = tl.exp(split_best - new_best)
        part = tl.load(partial + slot * VALUE_DIM + columns, mask=inside, other=0.0)
        acc = acc * shrink + part * grow
        total = total * shrink + tl.load(sums + slot) * grow
        best = new_best
    target = out + (row * HEADS + head).to(tl.int64) * VALUE_DIM + columns
    tl.store(target, (acc / total).to(out.dtype.element_ty), mask=inside)
