# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,misc"
"""Products with matrices in planes (`mrs.kernels.triton.bit_planes`), in Triton.

Numbers are made without conversion instructions: their bits are put on top of the fraction of a
float between 1 and 2, and what that adds is taken off with the minimum. Every sum is in float32
and in a fixed order. Importing this module imports Triton, which comes with torch's CUDA builds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unsigned(words, BITS: tl.constexpr):
    """Words of eight numbers of BITS, as integers whose shifts draw in zeros."""
    if BITS == 4:
        return words.to(tl.uint32, bitcast=True)
    elif BITS == 2:
        return words.to(tl.uint16, bitcast=True).to(tl.uint32)
    else:
        return words.to(tl.uint32)


@triton.jit
def _moved(words, PART: tl.constexpr, BITS: tl.constexpr, PLACE: tl.constexpr):
    """Number PART of each word, its lowest bit at PLACE of 32 bits that are 0 elsewhere."""
    MASK: tl.constexpr = ((1 << BITS) - 1) << PLACE
    if BITS * PART > PLACE:
        return (words >> (BITS * PART - PLACE)) & MASK
    else:
        return (words << (PLACE - BITS * PART)) & MASK


@triton.jit
def _fraction(low, high, PART: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, one):
    """1 + number / 2 ** (LOW + HIGH), float32, of number PART of each word."""
    bits = _moved(low, PART, LOW, 23 - LOW - HIGH) | one
    if HIGH > 0:
        bits = _moved(high, PART, HIGH, 23 - HIGH) | bits
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _load(plane, places, inside, BITS: tl.constexpr):
    return _unsigned(tl.load(plane + places, mask=inside, other=0), BITS)


@triton.jit
def _load_numbers(low_plane, high_plane, places, inside, LOW: tl.constexpr, HIGH: tl.constexpr):
    """The words of numbers of LOW + HIGH bits; with HIGH 0 the low ones stand in for the others."""
    low = _load(low_plane, places, inside, LOW)
    high = low
    if HIGH > 0:
        high = _load(high_plane, places, inside, HIGH)
    return low, high


@triton.jit
def _load_halves(planes, places, inside, LAYOUT: tl.constexpr):
    """d and base of blocks, float32; d stands in for a base that is not there."""
    d = tl.load(planes.d + places, mask=inside, other=0.0).to(tl.float32)
    base = d
    if LAYOUT.has_base:
        base = tl.load(planes.base + places, mask=inside, other=0.0).to(tl.float32)
    return d, base


@triton.jit
def _load_scales(planes, row, run, runs, inside, LAYOUT: tl.constexpr):
    """What all eight parts of a run's words share: words of scales and minima, d and base."""
    LOW: tl.constexpr = LAYOUT.scale_low
    HIGH: tl.constexpr = LAYOUT.scale_high
    RUNS_IN_BLOCK: tl.constexpr = LAYOUT.block // 8 // LAYOUT.run
    places = row * runs + run
    scales = _load_numbers(planes.scales_low, planes.scales_high, places, inside, LOW, HIGH)
    minima = scales
    if LAYOUT.has_base:
        minima = _load_numbers(planes.minima_low, planes.minima_high, places, inside, LOW, HIGH)
    halves = row * (runs // RUNS_IN_BLOCK) + run // RUNS_IN_BLOCK
    return scales, minima, _load_halves(planes, halves, inside, LAYOUT)


@triton.jit
def _line(words, PART: tl.constexpr, LAYOUT: tl.constexpr, one):
    """Factor and offset that make weights of `_fraction`s of codes, from `_load_scales`.

    weight = scale * (code - zero) + base * minimum, where the fraction f of a code is
    1 + code / size: so weight = (scale * size) * f - scale * (size + zero) + base * minimum, and
    scale * size is again such a line of the fraction of an integer scale. A scale is a product of
    few bits, and so is all that is made of it: exact.
    """
    scales, minima, halves = words
    d, base = halves
    LOW: tl.constexpr = LAYOUT.scale_low
    HIGH: tl.constexpr = LAYOUT.scale_high
    SIZE: tl.constexpr = 1 << LAYOUT.scale_bits
    CODES: tl.constexpr = 1 << LAYOUT.code_bits
    scale = _fraction(scales[0], scales[1], PART, LOW, HIGH, one)
    factor = scale * (d * (SIZE * CODES)) - d * ((SIZE + LAYOUT.scale_zero) * CODES)
    offset = -factor * (1 + LAYOUT.code_zero / CODES)
    if LAYOUT.has_base:
        minimum = _fraction(minima[0], minima[1], PART, LOW, HIGH, one)
        offset += minimum * (base * SIZE) - base * SIZE
    return factor, offset


@triton.jit
def _line_of_halves(halves, LAYOUT: tl.constexpr):
    """As `_line`, where there are no integer scales."""
    d, base = halves
    CODES: tl.constexpr = 1 << LAYOUT.code_bits
    factor = d * CODES
    offset = d * -(CODES + LAYOUT.code_zero)
    if LAYOUT.has_base:
        offset += base
    return factor, offset


@triton.jit
def _load_tile(planes, row, row_inside, first, words, WORDS: tl.constexpr, LAYOUT: tl.constexpr):
    """WORDS words of some rows, row (R, 1, 1), from word `first` on, (R, runs, words of a run)."""
    RUN: tl.constexpr = LAYOUT.run
    run = first // RUN + tl.arange(0, WORDS // RUN)[None, :, None]
    # Four words a thread everywhere: then its words, scales and activations belong together.
    word = run * RUN + tl.max_contiguous(tl.arange(0, RUN), 4)[None, None, :]
    inside = row_inside & (run * RUN < words)
    LOW: tl.constexpr = LAYOUT.code_low
    HIGH: tl.constexpr = LAYOUT.code_high
    places = row * words + word
    codes = _load_numbers(planes.codes_low, planes.codes_high, places, inside, LOW, HIGH)
    shared = codes
    if LAYOUT.scale_bits > 0:
        shared = _load_scales(planes, row, run, words // RUN, inside, LAYOUT)
    return run, inside, codes, shared


@triton.jit
def _part_of_tile(tile, planes, row, quads, PART: tl.constexpr, LAYOUT: tl.constexpr, one):
    """The weights of part PART of a tile's words, float32 (R, runs, words of a run)."""
    run, inside, codes, shared = tile
    if LAYOUT.scale_bits > 0:
        factor, offset = _line(shared, PART, LAYOUT, one)
    else:
        # Part PART of word w is column PART * words + w, and 32 columns are a block.
        block = (PART * quads + run) // 8
        halves = _load_halves(planes, row * quads + block, inside, LAYOUT)
        factor, offset = _line_of_halves(halves, LAYOUT)
    fraction = _fraction(codes[0], codes[1], PART, LAYOUT.code_low, LAYOUT.code_high, one)
    return fraction * factor + offset


@triton.jit
def _first_columns(word, LAYOUT: tl.constexpr):
    """The column of part 0 of each word."""
    if LAYOUT.scale_bits > 0:
        return word // 32 * 256 + word % 32
    else:
        return word


@triton.jit
def multiply_few(
    x,
    planes,
    out,
    tokens,
    rows,
    quads,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """x (tokens, 32 quads) @ weights.T into out (tokens, rows), at most TOKENS tokens.

    A program makes ROWS rows of the matrix and reads WORDS words of each at a time. Its threads
    add up what they have read, and the threads' sums are added at the end.
    """
    words = 4 * quads
    part_columns = 32 if LAYOUT.scale_bits > 0 else words
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)[:, None]
    row_places = row.to(tl.int64)[:, None, None]
    row_inside = (row < rows)[:, None, None]
    total = tl.zeros([TOKENS, ROWS, WORDS], tl.float32)
    for first in range(0, words, WORDS):
        tile = _load_tile(planes, row_places, row_inside, first, words, WORDS, LAYOUT)
        flat = first + tl.arange(0, WORDS)[None, :]
        x_places = x + token * (8 * words) + _first_columns(flat, LAYOUT)
        x_inside = (token < tokens) & (flat < words)
        for part in tl.static_range(8):
            weights = _part_of_tile(tile, planes, row_places, quads, part, LAYOUT, one)
            numbers = tl.load(x_places + part * part_columns, mask=x_inside, other=0.0)
            total += numbers.to(tl.float32)[:, None, :] * tl.reshape(weights, [1, ROWS, WORDS])
    sums = tl.sum(total, 2)
    places = token * rows + row[None, :]
    tl.store(out + places, sums, mask=(token < tokens) & (row < rows)[None, :])


@triton.jit
def multiply_many(
    x,
    factors,
    planes,
    out,
    tokens,
    rows,
    quads,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """x (tokens, 32 quads) @ weights.T, times factors (tokens,), into out (tokens, rows).

    x is in halves. A program makes TOKENS times ROWS results and decodes 32 words, 256 columns,
    of its rows at a time, to halves too: the numbers of all known models are, and larger ones
    would be cut off. Programs that read the same weights follow one another.
    """
    words = 4 * quads
    part_columns = 32 if LAYOUT.scale_bits > 0 else words
    token_blocks = tl.cdiv(tokens, TOKENS)
    token = tl.program_id(0) % token_blocks * TOKENS + tl.arange(0, TOKENS)[:, None]
    row = tl.program_id(0) // token_blocks * ROWS + tl.arange(0, ROWS)
    row_places = row.to(tl.int64)[:, None, None]
    row_inside = (row < rows)[:, None, None]
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for first in range(0, words, 32):
        tile = _load_tile(planes, row_places, row_inside, first, words, 32, LAYOUT)
        flat = first + tl.arange(0, 32)[None, :]
        x_places = x + token.to(tl.int64) * (8 * words) + _first_columns(flat, LAYOUT)
        x_inside = (token < tokens) & (flat < words)
        for part in tl.static_range(8):
            weights = _part_of_tile(tile, planes, row_places, quads, part, LAYOUT, one)
            halves = tl.clamp(weights, -65504.0, 65504.0).to(tl.float16)
            numbers = tl.load(x_places + part * part_columns, mask=x_inside, other=0.0)
            total = tl.dot(numbers, tl.trans(tl.reshape(halves, [ROWS, 32])), total)
    factor = tl.load(factors + token, mask=token < tokens, other=0.0)
    places = token.to(tl.int64) * rows + row[None, :]
    tl.store(out + places, total * factor, mask=(token < tokens) & (row < rows)[None, :])
