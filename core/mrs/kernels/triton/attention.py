# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,misc"
"""Triton kernels of attention over a paged KV cache.

A program attends with a tile of queries of one sequence, and with some of the heads that share a
key head: its matrices have a row for each pair of a query and a head. Head sizes that are no powers
of two are cut into two parts that are: 80 = 64 + 16, 576 = 512 + 64.

Every sum is in float32 and in the order of the keys. A sequence's keys are split at multiples of
`SPLIT`, so a result does not depend on the other sequences of the batch. One launch computes the
splits and adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_bytes(codes):
    """Floats of 8 bits (e4m3) as float32: their bits are those of a float16, but for its exponent.

    Not all GPUs have an instruction for it.
    """
    code = codes.to(tl.uint16)
    bits = ((code & 0x80) << 8) | ((code & 0x7F) << 7)
    x = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), x)


@triton.jit
def _load_part(base, rows, mask, first, SIZE: tl.constexpr, END: tl.constexpr, CACHE: tl.constexpr):
    """Values `first` to `first + SIZE` of vectors at `rows` (R,), zeros from END on: (R, SIZE).

    Bytes are floats of 8 bits.
    """
    columns = first + tl.arange(0, SIZE)
    inside = mask[:, None] & (columns < END)[None, :]
    pointers = base + rows[:, None] + columns[None, :]
    if base.dtype.element_ty == tl.uint8:
        return _of_bytes(tl.load(pointers, mask=inside, other=0))
    else:
        return tl.load(pointers, mask=inside, other=0.0, cache_modifier=CACHE)


@triton.jit
def _store_part(base, rows, mask, first, x, SIZE: tl.constexpr, END: tl.constexpr):
    columns = first + tl.arange(0, SIZE)
    inside = mask[:, None] & (columns < END)[None, :]
    tl.store(base + rows[:, None] + columns[None, :], x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def attend_tiles(
    q,  # (N, HEADS, DIM), contiguous
    keys,  # (blocks, KV, BLOCK, DIM), the last dimension contiguous; bytes are floats of 8 bits
    values,  # (blocks, KV, BLOCK, VALUE_DIM), of the same type
    tables,  # (B, width) int32: the blocks of each sequence
    lengths,  # (B,) int32: tokens of each sequence
    ends,  # (N,) int64: the last position that each query attends to; only if HAS_ENDS
    tiles,  # (tiles, 3) int32: sequence, first row of the tile, end of the sequence's rows
    sinks,  # (HEADS,) float32; only if HAS_SINKS
    out,  # (N, HEADS, VALUE_DIM)
    partial,  # float32 (splits, N, HEADS, VALUE_DIM): the sums of each split; only if SPLIT
    largest,  # float32 (splits, N, HEADS): the largest score; only if SPLIT
    sums,  # float32 (splits, N, HEADS): the sum of exp(score - largest); only if SPLIT
    arrived,  # (tiles * KV * head tiles,) int32, zeros before and after; only if SPLIT
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
    # Products are of the cache's type, or of the queries' if the cache has bytes.
    IS_BYTES: tl.constexpr = keys.dtype.element_ty == tl.uint8
    TYPE: tl.constexpr = q.dtype.element_ty if IS_BYTES else keys.dtype.element_ty
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

    q_rows = (row.to(tl.int64) * HEADS + head) * DIM
    q1 = _load_part(q, q_rows, is_query, 0, D1, DIM, "").to(TYPE)
    if D2 > 0:
        q2 = _load_part(q, q_rows, is_query, D1, D2, DIM, "").to(TYPE)
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
        k1 = _load_part(keys, k_rows, is_key, 0, D1, DIM, "").to(TYPE)
        scores = tl.dot(q1, tl.trans(k1), input_precision="ieee")
        if D2 > 0:
            k2 = _load_part(keys, k_rows, is_key, D1, D2, DIM, "").to(TYPE)
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
        v1 = _load_part(values, v_rows, is_key, 0, V1, VALUE_DIM, "").to(TYPE)
        weights = weights.to(TYPE)
        acc1 = acc1 * shrink[:, None] + tl.dot(weights, v1, input_precision="ieee")
        if V2 > 0:
            v2 = _load_part(values, v_rows, is_key, V1, V2, VALUE_DIM, "").to(TYPE)
            acc2 = acc2 * shrink[:, None] + tl.dot(weights, v2, input_precision="ieee")

    if SPLIT > 0:
        slot = (split * num_rows + row).to(tl.int64) * HEADS + head
        tl.store(largest + slot, best, mask=is_query)
        tl.store(sums + slot, total, mask=is_query)
        _store_part(partial, slot * VALUE_DIM, is_query, 0, acc1, V1, VALUE_DIM)
        if V2 > 0:
            _store_part(partial, slot * VALUE_DIM, is_query, V1, acc2, V2, VALUE_DIM)
        # The program that comes last adds up what all have stored, always in the same order.
        first_split = 0
        if WINDOW > 0:
            first_split = tl.maximum(length - WINDOW, 0) // KEYS * KEYS // SPLIT
        end_split = (length + SPLIT - 1) // SPLIT
        tl.debug_barrier()
        counter = arrived + tile * tl.num_programs(1) + tl.program_id(1)
        if tl.atomic_add(counter, 1) < end_split - first_split - 1:
            return
        tl.store(counter, 0)
        best = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        acc1 = tl.zeros((ROWS, V1), tl.float32)
        if V2 > 0:
            acc2 = tl.zeros((ROWS, V2), tl.float32)
        for other in range(first_split, end_split):
            slot = (other * num_rows + row).to(tl.int64) * HEADS + head
            # Not from the L1 cache, which does not know of stores of other programs.
            other_best = tl.load(largest + slot, mask=is_query, other=0.0, cache_modifier=".cg")
            other_sum = tl.load(sums + slot, mask=is_query, other=0.0, cache_modifier=".cg")
            new_best = tl.maximum(best, other_best)
            shrink, grow = tl.exp(best - new_best), tl.exp(other_best - new_best)
            total = total * shrink + other_sum * grow
            best = new_best
            part = _load_part(partial, slot * VALUE_DIM, is_query, 0, V1, VALUE_DIM, ".cg")
            acc1 = acc1 * shrink[:, None] + part * grow[:, None]
            if V2 > 0:
                part = _load_part(partial, slot * VALUE_DIM, is_query, V1, V2, VALUE_DIM, ".cg")
                acc2 = acc2 * shrink[:, None] + part * grow[:, None]
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
    slot = row.to(tl.int64) * HEADS + head
    _store_part(out, slot * VALUE_DIM, is_query, 0, acc1, V1, VALUE_DIM)
    if V2 > 0:
        _store_part(out, slot * VALUE_DIM, is_query, V1, acc2, V2, VALUE_DIM)
