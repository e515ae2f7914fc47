# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,misc"
"""Triton kernels of a mixture of experts for a few tokens: only chosen experts are read.

The matrices of all experts have the same layout, each in memory of its own: `moves` (experts,)
int64 are the distances in bytes from the first one's. The indices of the chosen experts stay on the
GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mrs.kernels.triton.bit_planes import ALIGNMENT_BYTES, Planes
from mrs.kernels.triton.decode_products import _activated, _sums

#: Kernels read only such values of a module.
_ALIGNMENT_BYTES = tl.constexpr(ALIGNMENT_BYTES)


@triton.jit
def _moved(plane, move, BYTES: tl.constexpr):
    """A plane of words of BYTES bytes that begins `move` bytes later."""
    return plane + move // BYTES


@triton.jit
def _of_expert(weight, moves, expert, LAYOUT: tl.constexpr, BYTES: tl.constexpr):
    """The matrix of an expert; BYTES are those of an element of `d`, or of a dense weight."""
    move = tl.multiple_of(tl.load(moves + expert), _ALIGNMENT_BYTES)
    if LAYOUT is None:
        return _moved(weight, move, BYTES)
    else:
        # A word of eight elements of n bits has n bytes. Planes that the layout lacks are not read;
        # Triton 3.6 makes no tuple with None.
        low = _moved(weight.codes_low, move, LAYOUT.code_low)
        high = low
        scales_low = low
        scales_high = low
        minima_low = low
        minima_high = low
        base = low
        if LAYOUT.code_high > 0:
            high = _moved(weight.codes_high, move, LAYOUT.code_high)
        if LAYOUT.scale_bits > 0:
            scales_low = _moved(weight.scales_low, move, LAYOUT.scale_low)
            if LAYOUT.scale_high > 0:
                scales_high = _moved(weight.scales_high, move, LAYOUT.scale_high)
        if LAYOUT.has_base:
            base = _moved(weight.base, move, BYTES)
            if LAYOUT.scale_bits > 0:
                minima_low = _moved(weight.minima_low, move, LAYOUT.scale_low)
                if LAYOUT.scale_high > 0:
                    minima_high = _moved(weight.minima_high, move, LAYOUT.scale_high)
        d = _moved(weight.d, move, BYTES)
        return Planes(low, high, scales_low, scales_high, minima_low, minima_high, d, base)


@triton.jit
def _combined(gates, ups, clamp, ACTIVATION: tl.constexpr):
    """activation(gate) * up; the functions are those of `nonlinearities.gated`."""
    if ACTIVATION == "clamped_swiglu":
        gates = tl.minimum(gates, clamp)
        ups = tl.minimum(tl.maximum(ups, -clamp), clamp) + 1
        return _activated(gates, "quick_gelu") * ups
    else:
        return _activated(gates, ACTIVATION) * ups


@triton.jit
def expert_gates(
    x,  # (tokens, columns)
    experts,  # (tokens, TOP_K) int64
    gate,  # of the first expert: planes of layout GATE, or a weight of floats if that is None
    gate_moves,
    up,
    up_moves,
    gate_bias,  # (experts, rows) float32; only if HAS_BIAS
    up_bias,
    out,  # (tokens * TOP_K, rows)
    rows,
    columns,
    clamp,
    one,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    GATE: tl.constexpr,
    GATE_BYTES: tl.constexpr,
    UP: tl.constexpr,
    UP_BYTES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """activation(x @ gate.T) * (x @ up.T) of each pair of a token and one of its experts.

    Programs of the same rows are adjacent, so that pairs with the same expert read it once.
    """
    pair = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    expert = tl.load(experts + pair)
    inputs = x + (pair // TOP_K).to(tl.int64) * columns
    gate = _of_expert(gate, gate_moves, expert, GATE, GATE_BYTES)
    gates, _ = _sums(inputs, inputs, gate, row, 1, rows, columns, one, 1, ROWS, WORDS, GATE, False)
    up = _of_expert(up, up_moves, expert, UP, UP_BYTES)
    ups, _ = _sums(inputs, inputs, up, row, 1, rows, columns, one, 1, ROWS, WORDS, UP, False)
    if HAS_BIAS:
        gates += tl.load(gate_bias + expert * rows + row, mask=row < rows, other=0.0)[None, :]
        ups += tl.load(up_bias + expert * rows + row, mask=row < rows, other=0.0)[None, :]
    target = out + pair.to(tl.int64) * rows + row[None, :]
    tl.store(target, _combined(gates, ups, clamp, ACTIVATION), mask=(row < rows)[None, :])


@triton.jit
def expert_sums(
    x,  # (tokens * TOP_K, columns)
    experts,  # (tokens, TOP_K) int64
    weights,  # (tokens, TOP_K) float32
    down,
    down_moves,
    down_bias,  # (experts, rows) float32; only if HAS_BIAS
    out,  # (tokens, rows)
    rows,
    columns,
    one,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    DOWN: tl.constexpr,
    DOWN_BYTES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """The weighted sum of x @ down.T of each token's experts, one after another."""
    token = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([1, ROWS], tl.float32)
    for slot in range(TOP_K):
        pair = token * TOP_K + slot
        expert = tl.load(experts + pair)
        inputs = x + pair.to(tl.int64) * columns
        matrix = _of_expert(down, down_moves, expert, DOWN, DOWN_BYTES)
        sums, _ = _sums(
            inputs, inputs, matrix, row, 1, rows, columns, one, 1, ROWS, WORDS, DOWN, False
        )
        if HAS_BIAS:
            sums += tl.load(down_bias + expert * rows + row, mask=row < rows, other=0.0)[None, :]
        total += tl.load(weights + pair).to(tl.float32) * sums
    target = out + token.to(tl.int64) * rows + row[None, :]
    tl.store(target, total, mask=(row < rows)[None, :])
