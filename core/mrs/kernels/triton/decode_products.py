# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,misc"
"""Triton kernels of a decode step: products with the norm before them and the sum after them.

A kernel that does nothing takes a GPU over a microsecond, as long as it reads 5 MB. So a layer has
few of them: an RMS norm is a factor on the sums of a product, which has read all of x anyway.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mrs.kernels.triton.matmul import few_token_sums


@triton.jit
def _dense_sums(
    x,  # (tokens, columns)
    norm,  # (columns,) float32; only if HAS_NORM
    weight,  # (rows, columns) of floats
    row,  # (ROWS,): the rows to multiply
    tokens,
    rows,
    columns,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """As `few_token_sums`: (TOKENS, ROWS) products, and (TOKENS,) sums of squares for the norm."""
    token = tl.arange(0, TOKENS)[:, None]
    row_starts = row.to(tl.int64)[:, None] * columns
    total = tl.zeros([TOKENS, ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)[None, :]
        inside = column < columns
        weights = tl.load(
            weight + row_starts + column, mask=(row < rows)[:, None] & inside, other=0
        )
        values = tl.load(x + token * columns + column, mask=(token < tokens) & inside, other=0.0)
        values = values.to(tl.float32)
        if HAS_NORM:
            squares += values * values
            values *= tl.load(norm + column, mask=inside, other=0.0)
        total += values[:, None, :] * weights.to(tl.float32)[None, :, :]
    return tl.sum(total, 2), tl.sum(squares, 1)


@triton.jit
def _sums(
    x,  # (tokens, columns)
    norm,  # (columns,) float32; only if HAS_NORM
    weight,  # planes of LAYOUT, or (rows, columns) of floats if that is None
    row,  # (ROWS,): the rows to multiply
    tokens,
    rows,
    columns,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Products (TOKENS, ROWS) with the rows `row` of a matrix, and (TOKENS,) sums of squares."""
    if LAYOUT is None:
        # As many sums in registers for any number of tokens.
        COLUMNS: tl.constexpr = 4 * WORDS // TOKENS if TOKENS <= 4 else WORDS
        return _dense_sums(
            x, norm, weight, row, tokens, rows, columns, TOKENS, ROWS, COLUMNS, HAS_NORM
        )
    else:
        quads = columns // 32
        return few_token_sums(
            x, norm, weight, row, tokens, rows, quads, one, TOKENS, ROWS, WORDS, LAYOUT, HAS_NORM
        )


@triton.jit
def _normalized(sums, squares, columns, eps, HAS_NORM: tl.constexpr):
    """Sums (TOKENS, ROWS) divided by the root mean squares of x, if there is a norm."""
    if HAS_NORM:
        sums = sums / tl.sqrt(squares / columns + eps)[:, None]
    return sums


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """All of these activations are made of the sigmoid."""
    if ACTIVATION == "gelu_tanh":
        inner = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    elif ACTIVATION == "quick_gelu":
        inner = 1.702 * x
    else:
        inner = x
    sigmoid = 1 / (1 + tl.exp(-inner))
    if ACTIVATION == "sigmoid":
        return sigmoid
    else:
        return x * sigmoid


@triton.jit
def _store_part(
    x,  # (tokens, columns)
    norm,  # (columns,) float32; only if HAS_NORM
    weight,  # as in `_sums`, with `rows` rows
    bias,  # (all_rows,) float32; only if HAS_BIAS
    added,  # (tokens, all_rows); only if HAS_ADDED
    out,  # (tokens, all_rows): the results of several matrices side by side
    block,  # the number of the ROWS rows
    first_row,  # where this matrix begins in `out`
    tokens,
    rows,
    all_rows,
    columns,
    eps,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
):
    """Store ROWS results of one of several matrices that are multiplied together."""
    row = block * ROWS + tl.arange(0, ROWS)
    sums, squares = _sums(
        x, norm, weight, row, tokens, rows, columns, one, TOKENS, ROWS, WORDS, LAYOUT, HAS_NORM
    )
    sums = _normalized(sums, squares, columns, eps, HAS_NORM)
    if HAS_BIAS:
        sums += tl.load(bias + first_row + row, mask=row < rows, other=0.0)[None, :]
    token = tl.arange(0, TOKENS)[:, None]
    mask = (token < tokens) & (row < rows)[None, :]
    offsets = token * all_rows + first_row + row[None, :]
    if HAS_ADDED:
        sums += tl.load(added + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offsets, sums, mask=mask)


@triton.jit
def joined_products(
    x,  # (tokens, columns)
    norm,  # (columns,) float32: the weights of an RMS norm of x; only if HAS_NORM
    first,  # planes of layout FIRST, or a weight of floats if that is None
    second,  # only if COUNT > 1
    third,  # only if COUNT > 2
    bias,  # (rows of all matrices,) float32; only if HAS_BIAS
    added,  # as `out`; only if HAS_ADDED
    out,  # (tokens, rows of all matrices)
    tokens,
    first_rows,
    second_rows,
    third_rows,
    columns,
    eps,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
):
    """out = norm(x) @ (up to three matrices below one another).T + bias + added."""
    rows = first_rows + second_rows + third_rows
    block = tl.program_id(0)
    first_blocks = tl.cdiv(first_rows, ROWS)
    second_end = first_blocks + tl.cdiv(second_rows, ROWS)
    if block < first_blocks:
        _store_part(
            x, norm, first, bias, added, out, block, 0, tokens, first_rows, rows, columns, eps, one,
            TOKENS, ROWS, WORDS, FIRST, HAS_NORM, HAS_BIAS, HAS_ADDED,
        )  # fmt: skip
    if COUNT > 1:  # noqa: SIM102 - only this condition is known to the compiler
        if (block >= first_blocks) & (block < second_end):
            _store_part(
                x, norm, second, bias, added, out, block - first_blocks, first_rows, tokens,
                second_rows, rows, columns, eps, one,
                TOKENS, ROWS, WORDS, SECOND, HAS_NORM, HAS_BIAS, HAS_ADDED,
            )  # fmt: skip
    if COUNT > 2:  # noqa: SIM102
        if block >= second_end:
            _store_part(
                x, norm, third, bias, added, out, block - second_end, first_rows + second_rows,
                tokens, third_rows, rows, columns, eps, one,
                TOKENS, ROWS, WORDS, THIRD, HAS_NORM, HAS_BIAS, HAS_ADDED,
            )  # fmt: skip


@triton.jit
def gated_products(
    x,
    norm,
    gate,
    up,
    out,
    tokens,
    rows,
    columns,
    eps,
    one,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """out (tokens, rows) = activation(norm(x) @ gate.T) * (norm(x) @ up.T)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    gates, squares = _sums(
        x, norm, gate, row, tokens, rows, columns, one, TOKENS, ROWS, WORDS, GATE, True
    )
    ups, _ = _sums(x, norm, up, row, tokens, rows, columns, one, TOKENS, ROWS, WORDS, UP, True)
    gates = _normalized(gates, squares, columns, eps, True)
    ups = _normalized(ups, squares, columns, eps, True)
    token = tl.arange(0, TOKENS)[:, None]
    mask = (token < tokens) & (row < rows)[None, :]
    tl.store(out + token * rows + row[None, :], _activated(gates, ACTIVATION) * ups, mask=mask)


@triton.jit
def _limited(x, LARGEST: tl.constexpr):
    """x between -LARGEST and LARGEST; what is no number stays so."""
    return tl.where(x > LARGEST, LARGEST, tl.where(x < -LARGEST, -LARGEST, x))


@triton.jit
def _bytes_of(x):
    """float32 up to 448 as floats of 8 bits (e4m3), rounded to the nearest, ties to even.

    The exponent is moved from a bias of 127 to one of 7. Below 2**-6 codes count units of 2**-9,
    which is what the last bit of 16384 + |x| counts.
    """
    bits = x.to(tl.uint32, bitcast=True)
    sign, magnitude = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True)
    code = tl.where(magnitude < 0x3C800000, small - 0x46800000, normal)
    return (sign | tl.where(magnitude > 0x7F800000, 0x7F, code)).to(tl.uint8)


@triton.jit
def _store_limited(target, x, mask, LARGEST: tl.constexpr):
    """Store values of a cache whose largest is LARGEST; bytes are floats of 8 bits."""
    x = _limited(x, LARGEST)
    if target.dtype.element_ty == tl.uint8:
        tl.store(target, _bytes_of(x), mask=mask)
    else:
        tl.store(target, x.to(target.dtype.element_ty), mask=mask)


@triton.jit
def rotate_and_write(
    qkv,  # (N, HEADS + 2 * KV_HEADS, DIM)
    cos,  # (N, PAIRS) float32
    sin,  # (N, PAIRS) float32
    norms,  # (2, DIM) float32: the weights of the norms of queries and keys; only if HAS_NORMS
    slots,  # (N,) int64
    keys,  # (blocks, KV_HEADS, BLOCK, DIM), the last dimension contiguous
    values,  # (blocks, KV_HEADS, BLOCK, DIM)
    queries,  # (N, HEADS, DIM): the result
    key_block,
    key_head,
    key_token,
    value_block,
    value_head,
    value_token,
    eps,
    LARGEST: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAD: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    """Rotate one head's query or key of a token; write keys and values to the cache.

    LARGEST is the largest value of the cache's type.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, PAD)
    inside = index < DIM
    source = qkv + (token.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * DIM
    x = tl.load(source + index, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + token)
    if head < HEADS + KV_HEADS:
        if INTERLEAVED:
            pair, partner = index // 2, index ^ 1
            sign = tl.where(index % 2 == 0, -1.0, 1.0)
        else:
            is_first = index < PAIRS
            pair, partner = index % PAIRS, tl.where(is_first, index + PAIRS, index - PAIRS)
            sign = tl.where(is_first, -1.0, 1.0)
        is_rotated = index < 2 * PAIRS
        other = tl.load(source + partner, mask=is_rotated, other=0.0).to(tl.float32)
        if HAS_NORMS:
            weights = norms + (head >= HEADS).to(tl.int32) * DIM
            factor = 1 / tl.sqrt(tl.sum(x * x, 0) / DIM + eps)
            x *= factor * tl.load(weights + index, mask=inside, other=0.0)
            other *= factor * tl.load(weights + partner, mask=is_rotated, other=0.0)
        c = tl.load(cos + token * PAIRS + pair, mask=is_rotated, other=1.0)
        s = tl.load(sin + token * PAIRS + pair, mask=is_rotated, other=0.0)
        x = x * c + sign * other * s
    if head < HEADS:
        query = queries + (token.to(tl.int64) * HEADS + head) * DIM
        tl.store(query + index, x.to(queries.dtype.element_ty), mask=inside)
    else:
        block, offset = slot // BLOCK, slot % BLOCK
        if head < HEADS + KV_HEADS:
            target = keys + block * key_block + (head - HEADS) * key_head + offset * key_token
            _store_limited(target + index, x, inside, LARGEST)
        else:
            kv_head = head - HEADS - KV_HEADS
            target = values + block * value_block + kv_head * value_head + offset * value_token
            _store_limited(target + index, x, inside, LARGEST)


@triton.jit
def project_heads(
    x,  # (tokens, columns)
    norm,  # (columns,) float32
    q,  # planes of layout Q, or a weight of floats if that is None
    k,
    v,
    bias,  # ((HEADS + 2 * KV_HEADS) * DIM,) float32; only if HAS_BIAS
    cos,  # (tokens, PAIRS) float32
    sin,
    slots,  # (tokens,) int64
    keys,  # as in `rotate_and_write`
    values,
    queries,  # (tokens, HEADS, DIM): the result
    tokens,
    columns,
    key_block,
    key_head,
    key_token,
    value_block,
    value_head,
    value_token,
    eps,
    one,
    TOKENS: tl.constexpr,
    WORDS: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    LARGEST: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Queries of norm(x), rotated; rotated keys, and values, go to the cache.

    A program computes the two rows of a pair that is rotated, or two adjacent ones.
    """
    head, unit = tl.program_id(0) // (DIM // 2), tl.program_id(0) % (DIM // 2)
    is_second = tl.arange(0, 2)
    column = 2 * unit + is_second
    pairs = tl.where(head < HEADS + KV_HEADS, PAIRS, 0)
    if not INTERLEAVED:
        column = tl.where(unit < pairs, unit + is_second * PAIRS, column)
    sums = tl.zeros([TOKENS, 2], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    if head < HEADS:
        sums, squares = _sums(
            x, norm, q, head * DIM + column, tokens, HEADS * DIM, columns, one,
            TOKENS, 2, WORDS, Q, True,
        )  # fmt: skip
    elif head < HEADS + KV_HEADS:
        sums, squares = _sums(
            x, norm, k, (head - HEADS) * DIM + column, tokens, KV_HEADS * DIM, columns, one,
            TOKENS, 2, WORDS, K, True,
        )  # fmt: skip
    else:
        sums, squares = _sums(
            x, norm, v, (head - HEADS - KV_HEADS) * DIM + column, tokens, KV_HEADS * DIM, columns,
            one, TOKENS, 2, WORDS, V, True,
        )  # fmt: skip
    sums = _normalized(sums, squares, columns, eps, True)
    if HAS_BIAS:
        sums += tl.load(bias + head * DIM + column)[None, :]
    token = tl.arange(0, TOKENS)[:, None]
    mask = token < tokens
    angle = token * 0 + unit
    c = tl.load(cos + token * PAIRS + angle, mask=mask & (angle < pairs), other=1.0)
    s = tl.load(sin + token * PAIRS + angle, mask=mask & (angle < pairs), other=0.0)
    first = tl.sum(tl.where(is_second[None, :] == 0, sums, 0.0), 1)[:, None]
    second = tl.sum(tl.where(is_second[None, :] == 1, sums, 0.0), 1)[:, None]
    rotated = tl.where(is_second[None, :] == 0, first * c - second * s, second * c + first * s)
    both = mask & (column < DIM)[None, :]
    slot = tl.load(slots + token, mask=mask, other=0)
    block, offset = slot // BLOCK, slot % BLOCK
    if head < HEADS:
        query = queries + (token * HEADS + head) * DIM
        tl.store(query + column[None, :], rotated.to(queries.dtype.element_ty), mask=both)
    elif head < HEADS + KV_HEADS:
        target = keys + block * key_block + (head - HEADS) * key_head + offset * key_token
        _store_limited(target + column[None, :], rotated, both, LARGEST)
    else:
        kv_head = head - HEADS - KV_HEADS
        target = values + block * value_block + kv_head * value_head + offset * value_token
        _store_limited(target + column[None, :], rotated, both, LARGEST)
