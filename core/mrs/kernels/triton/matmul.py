# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,misc"
"""Triton kernels that multiply matrices stored as bit planes (`mrs.kernels.triton.bit_planes`).

Codes become floats without conversion instructions: their bits are placed at the top of the
mantissa of a float between 1 and 2, and the resulting 1 is subtracted together with the minimum.
Every sum is in float32 and in a fixed order. Importing this module imports Triton, which comes
with torch's CUDA builds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unsigned(words, BITS: tl.constexpr):
    """Words of eight elements of BITS bits, as uint32, whose right shifts insert zeros."""
    if BITS == 4:
        return words.to(tl.uint32, bitcast=True)
    elif BITS == 2:
        return words.to(tl.uint16, bitcast=True).to(tl.uint32)
    else:
        return words.to(tl.uint32)


@triton.jit
def _shift_element(words, ELEMENT: tl.constexpr, BITS: tl.constexpr, BIT: tl.constexpr):
    """Element ELEMENT of each word, shifted so that its lowest bit is bit BIT; 0 elsewhere."""
    MASK: tl.constexpr = ((1 << BITS) - 1) << BIT
    if BITS * ELEMENT > BIT:
        return (words >> (BITS * ELEMENT - BIT)) & MASK
    else:
        return (words << (BIT - BITS * ELEMENT)) & MASK


@triton.jit
def _fraction(low, high, ELEMENT: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, one):
    """1 + element / 2 ** (LOW + HIGH), float32, of element ELEMENT of each word."""
    bits = _shift_element(low, ELEMENT, LOW, 23 - LOW - HIGH) | one
    if HIGH > 0:
        bits = _shift_element(high, ELEMENT, HIGH, 23 - HIGH) | bits
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _load(plane, offsets, mask, BITS: tl.constexpr):
    """Words at `offsets` of a plane, as `_unsigned` returns them."""
    return _unsigned(tl.load(plane + offsets, mask=mask, other=0), BITS)


@triton.jit
def _load_words(low_plane, high_plane, offsets, mask, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Low and high words of elements of LOW + HIGH bits; with HIGH 0, the low words twice."""
    low = _load(low_plane, offsets, mask, LOW)
    high = low
    if HIGH > 0:
        high = _load(high_plane, offsets, mask, HIGH)
    return low, high


@triton.jit
def _float_code(low, high, ELEMENT: tl.constexpr, LAYOUT: tl.constexpr):
    """Element ELEMENT of each word as a float32: a code of e4m3 or e2m1, times a power of two.

    Its bits are those of a float16, whose exponents are 8 or 14 lower than the code's.
    """
    if LAYOUT.code_bits == 8:
        bits = _shift_element(low, ELEMENT, 4, 7)
        above = _shift_element(high, ELEMENT, 4, 11)
        bits = bits | (above & 0x3800) | ((above & 0x4000) << 1)
    else:
        code = _shift_element(low, ELEMENT, 4, 9)
        bits = (code & 0x0E00) | ((code & 0x1000) << 3)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _float_factor(planes, offsets, mask, LAYOUT: tl.constexpr):
    """What `_float_code` of a block is multiplied with."""
    if LAYOUT.code_bits == 8:
        return tl.load(planes.d + offsets, mask=mask, other=0.0) * 256.0
    else:
        exponents = tl.load(planes.d + offsets, mask=mask, other=0).to(tl.uint32) << 23
        return exponents.to(tl.float32, bitcast=True) * 16384.0


@triton.jit
def _load_d_and_base(planes, offsets, mask, LAYOUT: tl.constexpr):
    """d and base of blocks, float32; d twice if the layout has no base."""
    d = tl.load(planes.d + offsets, mask=mask, other=0.0).to(tl.float32)
    base = d
    if LAYOUT.has_base:
        base = tl.load(planes.base + offsets, mask=mask, other=0.0).to(tl.float32)
    return d, base


@triton.jit
def _load_scales(planes, row, group, groups, mask, LAYOUT: tl.constexpr):
    """Words of scales and minima, and (d, base), of groups of SUB_BLOCK words of codes."""
    LOW: tl.constexpr = LAYOUT.scale_low
    HIGH: tl.constexpr = LAYOUT.scale_high
    BLOCK_GROUPS: tl.constexpr = LAYOUT.block // 8 // LAYOUT.sub_block
    offsets = row * groups + group
    scales = _load_words(planes.scales_low, planes.scales_high, offsets, mask, LOW, HIGH)
    minima = scales
    if LAYOUT.has_base:
        minima = _load_words(planes.minima_low, planes.minima_high, offsets, mask, LOW, HIGH)
    blocks = row * (groups // BLOCK_GROUPS) + group // BLOCK_GROUPS
    return scales, minima, _load_d_and_base(planes, blocks, mask, LAYOUT)


@triton.jit
def _factor_and_offset(loaded, ELEMENT: tl.constexpr, LAYOUT: tl.constexpr, one):
    """factor and offset such that weight = factor * f + offset; `loaded` is by `_load_scales`.

    f = 1 + code / size is the `_fraction` of a code. From
    weight = scale * (code - zero) + base * minimum follows
    weight = (scale * size) * f - scale * (size + zero) + base * minimum.
    An integer scale is made from its own fraction in the same way. All values have few bits, so
    the products are exact.
    """
    scales, minima, d_and_base = loaded
    d, base = d_and_base
    LOW: tl.constexpr = LAYOUT.scale_low
    HIGH: tl.constexpr = LAYOUT.scale_high
    SIZE: tl.constexpr = 1 << LAYOUT.scale_bits
    CODES: tl.constexpr = 1 << LAYOUT.code_bits
    scale = _fraction(scales[0], scales[1], ELEMENT, LOW, HIGH, one)
    factor = scale * (d * (SIZE * CODES)) - d * ((SIZE + LAYOUT.scale_zero) * CODES)
    offset = -factor * (1 + LAYOUT.code_zero / CODES)
    if LAYOUT.has_base:
        minimum = _fraction(minima[0], minima[1], ELEMENT, LOW, HIGH, one)
        offset += minimum * (base * SIZE) - base * SIZE
    return factor, offset


@triton.jit
def _factor_and_offset_of_blocks(d_and_base, LAYOUT: tl.constexpr):
    """As `_factor_and_offset`, for layouts without integer scales."""
    d, base = d_and_base
    CODES: tl.constexpr = 1 << LAYOUT.code_bits
    factor = d * CODES
    offset = d * -(CODES + LAYOUT.code_zero)
    if LAYOUT.has_base:
        offset += base
    return factor, offset


@triton.jit
def _for_each_group(row, GROUPS: tl.constexpr):
    """`row` (R,) for each of GROUPS groups of words: (R * GROUPS, 1), int64.

    Groups and rows share a dimension, so that threads have adjacent groups of a row before they
    have other rows. With a dimension for each, Triton 3.6 deals lanes to rows first, and then adds
    up sums of several rows.
    """
    ROWS: tl.constexpr = row.shape[0]
    each = tl.broadcast_to(row.to(tl.int64)[:, None], [ROWS, GROUPS])
    return tl.reshape(each, [ROWS * GROUPS, 1])


@triton.jit
def _load_codes(
    planes,
    row,
    group,
    mask,
    words,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """Words of codes FIRST to FIRST + COUNT of each group: low and high words."""
    # Each thread gets four words, with the scales and activations that belong to them.
    index = FIRST + tl.max_contiguous(tl.arange(0, COUNT), 4)[None, :]
    offsets = row * words + group * LAYOUT.sub_block + index
    LOW: tl.constexpr = LAYOUT.code_low
    HIGH: tl.constexpr = LAYOUT.code_high
    return _load_words(planes.codes_low, planes.codes_high, offsets, mask, LOW, HIGH)


@triton.jit
def _load_tile(
    planes,
    row,
    rows,
    first,
    words,
    GROUPS: tl.constexpr,
    PART: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """GROUPS groups of words of `row` by `_for_each_group`, from word `first` on.

    Of the codes PART words of each group are loaded: (R * GROUPS, PART). Rows from `rows` on are
    zeros.
    """
    SUB_BLOCK: tl.constexpr = LAYOUT.sub_block
    index = tl.arange(0, row.shape[0])[:, None]
    group = first // SUB_BLOCK + index % GROUPS
    mask = (row < rows) & (group * SUB_BLOCK < words)
    codes = _load_codes(planes, row, group, mask, words, 0, PART, LAYOUT)
    scales = codes
    if LAYOUT.scale_bits > 0:
        scales = _load_scales(planes, row, group, words // SUB_BLOCK, mask, LAYOUT)
    return group, mask, codes, scales


@triton.jit
def _element_scales(tile, planes, row, quads, ELEMENT: tl.constexpr, LAYOUT: tl.constexpr, one):
    """factor and offset of element ELEMENT of a tile's groups: weight = factor * code + offset.

    Codes of floats have no offset; the second result is of no use then.
    """
    group, mask, _, scales = tile
    if LAYOUT.scale_bits > 0:
        return _factor_and_offset(scales, ELEMENT, LAYOUT, one)
    else:
        # Element e of word w is column e * words + w.
        column = ELEMENT * 4 * quads + group * LAYOUT.sub_block
        offsets = row * (32 * quads // LAYOUT.block) + column // LAYOUT.block
        if LAYOUT.is_float:
            factor = _float_factor(planes, offsets, mask, LAYOUT)
            return factor, factor
        else:
            d_and_base = _load_d_and_base(planes, offsets, mask, LAYOUT)
            return _factor_and_offset_of_blocks(d_and_base, LAYOUT)


@triton.jit
def _code(low, high, ELEMENT: tl.constexpr, LAYOUT: tl.constexpr, one):
    """Element ELEMENT of each word, as a factor and an offset make a weight of it."""
    if LAYOUT.is_float:
        return _float_code(low, high, ELEMENT, LAYOUT)
    else:
        return _fraction(low, high, ELEMENT, LAYOUT.code_low, LAYOUT.code_high, one)


@triton.jit
def _tile_weights(tile, planes, row, quads, ELEMENT: tl.constexpr, LAYOUT: tl.constexpr, one):
    """The weights of element ELEMENT of a tile's words, float32 (R * groups, SUB_BLOCK)."""
    low, high = tile[2]
    code = _code(low, high, ELEMENT, LAYOUT, one)
    factor, offset = _element_scales(tile, planes, row, quads, ELEMENT, LAYOUT, one)
    if LAYOUT.is_float:
        return code * factor
    else:
        return code * factor + offset


@triton.jit
def _first_columns(word, LAYOUT: tl.constexpr):
    """The column of element 0 of each word."""
    if LAYOUT.scale_bits > 0:
        return word // 32 * 256 + word % 32
    else:
        return word


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _sums_of_fours(values, code, TOKENS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Sums of four adjacent values * code, and of four values (TOKENS, WORDS), which a thread has.

    Both are (TOKENS, ROWS, WORDS / 4) and added up together: so they have the same threads.
    """
    values = tl.broadcast_to(values[:, None, :], [TOKENS, ROWS, WORDS])
    products = values * tl.reshape(code, [1, ROWS, WORDS])
    products = tl.reshape(products, [TOKENS, ROWS, WORDS // 4, 4])
    return tl.reduce((products, tl.reshape(values, [TOKENS, ROWS, WORDS // 4, 4])), 3, _add_both)


@triton.jit
def few_token_sums(
    x,
    norm,
    planes,
    row,
    tokens,
    rows,
    quads,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """x (tokens, 32 * quads) @ weights.T for rows `row` (ROWS,) of the matrix: (TOKENS, ROWS).

    With HAS_NORM, x is multiplied by `norm` (32 * quads,) first, and the second result has the sums
    of the squares of x (TOKENS,). WORDS words of each row are loaded at a time. A thread adds up x
    times codes of a group, and multiplies the sum with the scale: so weights take fewer
    instructions, which limit this kernel on GPUs with fast memory. The sums of the threads are
    added at the end.
    """
    GROUP: tl.constexpr = LAYOUT.sub_block
    PART: tl.constexpr = min(GROUP, 16)  # so that a thread has several words of a long group
    GROUPS: tl.constexpr = WORDS // PART
    words = 4 * quads
    element_columns = 32 if LAYOUT.scale_bits > 0 else words
    token = tl.arange(0, TOKENS)[:, None]
    row_ids = _for_each_group(row, GROUPS)
    flat = tl.arange(0, WORDS)[None, :]
    total = tl.zeros([TOKENS, ROWS * GROUPS, PART // 4], tl.float32)
    squares = tl.zeros([TOKENS, WORDS], tl.float32)
    for first in range(0, words, GROUPS * GROUP):
        tile = _load_tile(planes, row_ids, rows, first, words, GROUPS, PART, LAYOUT)
        group, mask, codes, _ = tile
        others = codes
        if GROUP > PART:
            others = _load_codes(planes, row_ids, group, mask, words, PART, PART, LAYOUT)
        x_group = (first // GROUP + flat // PART) * GROUP
        x_column = _first_columns(x_group, LAYOUT) + flat % PART
        x_mask = (token < tokens) & (x_group < words)
        for element in tl.static_range(8):
            for part in tl.static_range(GROUP // PART):
                column = x_column + part * PART + element * element_columns
                values = tl.load(x + token * (8 * words) + column, mask=x_mask, other=0.0)
                values = values.to(tl.float32)
                if HAS_NORM:
                    squares += values * values
                    values *= tl.load(norm + column, mask=x_group < words, other=0.0)
                own = codes
                if part > 0:
                    own = others
                code = _code(own[0], own[1], element, LAYOUT, one)
                found, found_x = _sums_of_fours(values, code, TOKENS, ROWS, WORDS)
                if part == 0:
                    products, sums = found, found_x
                else:
                    products, sums = products + found, sums + found_x
            factor, offset = _element_scales(tile, planes, row_ids, quads, element, LAYOUT, one)
            total += tl.reshape(products, [TOKENS, ROWS * GROUPS, PART // 4]) * factor[None, :, :]
            if not LAYOUT.is_float:
                total += tl.reshape(sums, [TOKENS, ROWS * GROUPS, PART // 4]) * offset[None, :, :]
    total = tl.reshape(total, [TOKENS, ROWS, WORDS // 4])
    return tl.sum(total, 2), tl.sum(squares, 1)


@triton.jit
def matmul_few_tokens(
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
    """out (tokens, rows) = x (tokens, 32 * quads) @ weights.T, for at most TOKENS tokens.

    A program computes ROWS rows of the matrix.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sums, _ = few_token_sums(
        x, x, planes, row, tokens, rows, quads, one, TOKENS, ROWS, WORDS, LAYOUT, False
    )
    token = tl.arange(0, TOKENS)[:, None]
    tl.store(out + token * rows + row[None, :], sums, mask=(token < tokens) & (row < rows)[None, :])


@triton.jit
def matmul_many_tokens(
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
    WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """out (tokens, rows) = x (tokens, 32 * quads) @ weights.T * factors (tokens,).

    x is float16. A program computes TOKENS * ROWS results and decodes WORDS words, eight columns
    each, of its rows at a time, to float16 too. The weights of all known models are in the range
    of float16; larger ones are clamped, and those below 2**-24 are zero. Programs that read the
    same weights have adjacent ids.
    """
    words = 4 * quads
    element_columns = 32 if LAYOUT.scale_bits > 0 else words
    token_blocks = tl.cdiv(tokens, TOKENS)
    token = tl.program_id(0) % token_blocks * TOKENS + tl.arange(0, TOKENS)[:, None]
    row = tl.program_id(0) // token_blocks * ROWS + tl.arange(0, ROWS)
    GROUPS: tl.constexpr = WORDS // LAYOUT.sub_block
    row_ids = _for_each_group(row, GROUPS)
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for first in range(0, words, WORDS):
        tile = _load_tile(planes, row_ids, rows, first, words, GROUPS, LAYOUT.sub_block, LAYOUT)
        flat = first + tl.arange(0, WORDS)[None, :]
        x_pointers = x + token.to(tl.int64) * (8 * words) + _first_columns(flat, LAYOUT)
        x_mask = (token < tokens) & (flat < words)
        for element in tl.static_range(8):
            weights = _tile_weights(tile, planes, row_ids, quads, element, LAYOUT, one)
            # Reshaped before it is converted: Triton 3.6 fails on the other order for Hopper.
            weights = tl.reshape(weights, [ROWS, WORDS])
            weights_f16 = tl.clamp(weights, -65504.0, 65504.0).to(tl.float16)
            values = tl.load(x_pointers + element * element_columns, mask=x_mask, other=0.0)
            total = tl.dot(values, tl.trans(weights_f16), total)
    factor = tl.load(factors + token, mask=token < tokens, other=0.0)
    offsets = token.to(tl.int64) * rows + row[None, :]
    tl.store(out + offsets, total * factor, mask=(token < tokens) & (row < rows)[None, :])


@triton.jit
def decode_rows(
    planes,
    ids,
    out,
    quads,
    one,
    WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """out (N, 32 * quads) = the rows `ids` (N,) of a matrix; a program decodes WORDS words."""
    words = 4 * quads
    element_columns = 32 if LAYOUT.scale_bits > 0 else words
    number, first = tl.program_id(0), tl.program_id(1) * WORDS
    row = tl.load(ids + number).to(tl.int64)
    GROUPS: tl.constexpr = WORDS // LAYOUT.sub_block
    row_ids = _for_each_group(row + tl.zeros([1], tl.int64), GROUPS)
    tile = _load_tile(planes, row_ids, row + 1, first, words, GROUPS, LAYOUT.sub_block, LAYOUT)
    flat = first + tl.arange(0, WORDS)[None, :]
    target = out + number.to(tl.int64) * (8 * words) + _first_columns(flat, LAYOUT)
    for element in tl.static_range(8):
        weights = _tile_weights(tile, planes, row_ids, quads, element, LAYOUT, one)
        weights = tl.reshape(weights, [1, WORDS])
        tl.store(target + element * element_columns, weights, mask=flat < words)
