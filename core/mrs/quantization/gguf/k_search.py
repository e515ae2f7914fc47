"""Search the scales of k-quant super-blocks, for encoding Q2_K to Q6_K.

A super-block of 256 weights is cut into sub-blocks of 16 or 32, each approximated by
`scale * q` (symmetric) or `scale * q - minimum` with small integers q; scales and minima are
integer multiples of the float16 values `d` and `dmin`. Errors are weighted by the importance of
columns if that is known, else by `rms(sub-block) + |weight|` as in ggml's quantizer. Every
sub-block tries several ranges for its q, each followed by a weighted least-squares fit. ggml tries
16 to 21 ranges that differ at one end; this search tries a few that differ at both ends. They were
picked greedily: each lowers the weighted error of Gaussian, heavy-tailed and outlier-ridden weights
the most. A last least-squares step over the whole super-block corrects for the rounding of the
scales.

The search of a sub-block alone, without super-blocks, serves the blocks of 32 if the importance of
columns is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_HALF_UNIT = 2.0**-24  # the distance of subnormal float16 values
_HALF_MAX = 65504.0
_TINY = 1e-30


@dataclass(frozen=True)
class WithMinimum:
    """A layout whose sub-blocks are `scale * q - minimum`, q in 0..levels.

    Scales and minima are integers in 0..scale_levels times `d` and `dmin`. A trial (a, b) maps
    the sub-block's range, less `a` steps at its low end and `b` at its high end, to 0..levels.
    """

    sub_block: int
    levels: int
    scale_levels: int
    trials: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Symmetric:
    """A layout whose sub-blocks are `scale * q`, q in -levels..levels - 1.

    Scales are integers in -scale_levels..scale_levels - 1 times `d`. A trial maps the weight of
    largest magnitude to `-levels + trial`, with a fitted scale of either sign.
    """

    sub_block: int
    levels: int
    scale_levels: int
    trials: tuple[float, ...]


@dataclass
class Fit:
    """A quantized super-block. `minima` and `dmin` are None in symmetric layouts."""

    q: torch.Tensor  # (N, 256) uint8, symmetric layouts offset by `levels`
    scales: torch.Tensor  # (N, S) float32 integers
    d: torch.Tensor  # (N, 1) float16
    minima: torch.Tensor | None = None  # (N, S) float32 integers
    dmin: torch.Tensor | None = None  # (N, 1) float16


def _importance(x: torch.Tensor, columns: torch.Tensor | None) -> torch.Tensor:
    """The weight of each element in the error: x (…, n), that of `columns` if known -> (…, n)."""
    if columns is not None:
        return columns.view_as(x)
    rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    return x.abs().add_(rms)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum(-1, keepdim=True)


def _over(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b for b >= 0; finite if b is 0."""
    return a / b.clamp(min=_TINY)


def _storable(d: torch.Tensor) -> torch.Tensor:
    """d rounded to float16, in float32.

    Subnormal values are rounded up: rounded down, the integer scales could not reach the largest
    scale by far.
    """
    units = d.abs().clamp_(max=_HALF_MAX) / _HALF_UNIT
    units = torch.where(units < 1024, units.ceil(), units)
    return (units * _HALF_UNIT * d.sign()).half().float()


def _levels_of(x: torch.Tensor, scale: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """x / scale rounded to integers in low..high; for scale 0, the integer nearest to 0."""
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    return (x * inverse).round_().clamp_(low, high)


def _fit_with_minimum(
    x: torch.Tensor, importance: torch.Tensor, layout: WithMinimum
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best scale and minimum (>= 0) of each sub-block: x (M, n) -> (M, 1) and (M, 1).

    Works on y = (x - lowest) / step, which runs from 0 to `levels`, where trials are constants
    and y is approximated by slope * q + shift.
    """
    lowest, highest = x.amin(1, keepdim=True).clamp_(max=0), x.amax(1, keepdim=True)
    step = (highest - lowest) / layout.levels
    y = (x - lowest) * torch.where(step == 0, 0.0, 1 / step)
    weighted = importance * y
    sums = x.new_empty(3, len(layout.trials), len(x))
    q, share = torch.empty_like(y), torch.empty_like(y)
    for (low, high), of_q, of_qq, of_yq in zip(layout.trials, *sums, strict=True):
        stretch = layout.levels / (layout.levels - low - high)
        torch.mul(y, stretch, out=q).sub_(low * stretch).round_().clamp_(0, layout.levels)
        torch.sum(torch.mul(importance, q, out=share), 1, out=of_q)
        torch.sum(share.mul_(q), 1, out=of_qq)
        torch.sum(torch.mul(weighted, q, out=share), 1, out=of_yq)
    highest_shift = _over(-lowest, step).squeeze(1)  # more would make the minimum negative
    slope, shift = _best_line(sums, importance.sum(1), weighted.sum(1), highest_shift)
    return slope.unsqueeze(1) * step, -(lowest + shift.unsqueeze(1) * step)


def _best_line(
    sums: torch.Tensor, total: torch.Tensor, sum_y: torch.Tensor, highest_shift: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope and shift of the best trial, weighted least squares of y over q.

    `sums` holds the weighted sums of q, q * q and y * q, a row a trial: (3, T, M); the rest and
    the results are (M,).
    """
    sum_q, sum_qq, sum_yq = sums
    determinant = total * sum_qq - sum_q * sum_q
    is_line = determinant > 1e-6 * total * sum_qq  # false where all q are equal
    shift = torch.where(is_line, (sum_qq * sum_y - sum_q * sum_yq) / determinant, 0.0)
    shift = torch.minimum(shift, highest_shift)
    slope = (sum_yq - shift * sum_q) / sum_qq.clamp(min=_TINY)
    # By how much the line lowers the sum of squares of y.
    gain = slope * (2 * (sum_yq - shift * sum_q) - slope * sum_qq)
    gain += shift * (2 * sum_y - shift * total)
    best = gain.argmax(0, keepdim=True)
    return slope.gather(0, best)[0], shift.gather(0, best)[0]


def search_with_minimum(
    x: torch.Tensor, layout: WithMinimum, columns: torch.Tensor | None = None
) -> Fit:
    """Quantize super-blocks x (N, 256), float32; `columns` (N, 256) is the importance of each."""
    blocks = x.view(len(x), -1, layout.sub_block)  # (N, S, n)
    importance = _importance(blocks, columns)
    flat = (blocks.view(-1, layout.sub_block), importance.view(-1, layout.sub_block))
    scale, minimum = (fit.view(len(x), -1) for fit in _fit_with_minimum(*flat, layout))
    top = layout.scale_levels
    d = _storable(scale.amax(1, keepdim=True) / top)
    dmin = _storable(minimum.amax(1, keepdim=True) / top)
    scales, minima = _levels_of(scale, d, 0, top), _levels_of(minimum, dmin, 0, top)

    def levels() -> torch.Tensor:
        shifted = blocks + (dmin * minima).unsqueeze(2)
        return _levels_of(shifted, (d * scales).unsqueeze(2), 0, layout.levels)

    q = levels()
    share = importance * q
    sum_q, sum_qq, sum_xq = share.sum(2), (share * q).sum(2), (share * blocks).sum(2)
    sum_x, total = (importance * blocks).sum(2), importance.sum(2)
    # Least squares in d and dmin for these q, then in each scale and each minimum.
    aa, bb = _dot(scales * scales, sum_qq), _dot(minima * minima, total)
    ab, xa, xb = _dot(scales * minima, sum_q), _dot(scales, sum_xq), _dot(minima, sum_x)
    determinant = aa * bb - ab * ab
    new_d = (xa * bb - xb * ab) / determinant
    new_dmin = (xa * ab - xb * aa) / determinant
    solved = (determinant > 1e-6 * aa * bb) & (new_d > 0) & (new_dmin > 0)
    d = _storable(torch.where(solved, new_d, d))
    dmin = _storable(torch.where(solved, new_dmin, dmin))
    scales = _levels_of(_over(sum_xq + dmin * minima * sum_q, sum_qq), d, 0, top)
    minima = _levels_of(_over(d * scales * sum_q - sum_x, total), dmin, 0, top)
    q = levels().to(torch.uint8).view(len(x), -1)
    return Fit(q, scales, d.half(), minima, dmin.half())


def _fit_symmetric(x: torch.Tensor, importance: torch.Tensor, layout: Symmetric) -> torch.Tensor:
    """The best scale of each sub-block, of either sign: x (M, n) -> (M, 1)."""
    largest = x.gather(1, x.abs().argmax(1, keepdim=True))
    y = x * torch.where(largest == 0, 0.0, -layout.levels / largest)
    weighted = importance * y
    sums = x.new_empty(2, len(layout.trials), len(x))
    q, share = torch.empty_like(y), torch.empty_like(y)
    for trial, of_yq, of_qq in zip(layout.trials, *sums, strict=True):
        stretch = 1 - trial / layout.levels
        torch.mul(y, stretch, out=q).round_().clamp_(-layout.levels, layout.levels - 1)
        torch.sum(torch.mul(weighted, q, out=share), 1, out=of_yq)
        torch.sum(torch.mul(importance, q, out=share).mul_(q), 1, out=of_qq)
    slope = sums[0] / sums[1].clamp(min=_TINY)
    best = (slope * sums[0]).argmax(0, keepdim=True)
    return slope.gather(0, best).T * largest / -layout.levels


def search_symmetric(
    x: torch.Tensor, layout: Symmetric, columns: torch.Tensor | None = None
) -> Fit:
    """Quantize super-blocks x (N, 256), float32; `columns` (N, 256) is the importance of each."""
    blocks = x.view(len(x), -1, layout.sub_block)  # (N, S, n)
    importance = _importance(blocks, columns)
    flat = (blocks.view(-1, layout.sub_block), importance.view(-1, layout.sub_block))
    scale = _fit_symmetric(*flat, layout).view(len(x), -1)
    low, high = -layout.scale_levels, layout.scale_levels - 1
    d = _storable(scale.gather(1, scale.abs().argmax(1, keepdim=True)) / low)
    scales = _levels_of(scale, d, low, high)

    def levels() -> torch.Tensor:
        scale = (d * scales).unsqueeze(2)
        return _levels_of(blocks, scale, -layout.levels, layout.levels - 1)

    q = levels()
    share = importance * q
    sum_qq, sum_xq = (share * q).sum(2), (share * blocks).sum(2)
    # Least squares in d for these q, then in each scale.
    weight = _dot(scales * scales, sum_qq)
    d = _storable(torch.where(weight > 0, _dot(scales, sum_xq) / weight, d))
    scales = _levels_of(_over(sum_xq, sum_qq), d, low, high)
    q = (levels() + layout.levels).to(torch.uint8).view(len(x), -1)
    return Fit(q, scales, d.half())


def block_symmetric(
    x: torch.Tensor, layout: Symmetric, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale (M, 1) and q (M, n) of sub-blocks x (M, n) alone; `columns` (M, n) is importance."""
    low, high = -layout.levels, layout.levels - 1
    scale = _storable(_fit_symmetric(x, columns, layout))
    q = _levels_of(x, scale, low, high)
    share = columns * q
    scale = _storable(_over(_dot(share, x), _dot(share, q)))
    return scale, (_levels_of(x, scale, low, high) + layout.levels).to(torch.uint8)


def group_with_minimum(
    x: torch.Tensor, layout: WithMinimum, columns: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale and minimum (M, 1), of any sign, and q (M, n) of groups x (M, n), float32."""
    scale, minimum = _group_fit(x, layout, columns)
    return scale, minimum, _levels_of(x - minimum, scale, 0, layout.levels)


def block_with_minimum(
    x: torch.Tensor, layout: WithMinimum, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `group_with_minimum`, with scale and minimum rounded to float16 and q as uint8."""
    scale, minimum = _group_fit(x, layout, columns)
    scale, minimum = _storable(scale), minimum.half().float()
    return scale, minimum, _levels_of(x - minimum, scale, 0, layout.levels).to(torch.uint8)


def _group_fit(
    x: torch.Tensor, layout: WithMinimum, columns: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    importance = _importance(x, columns)
    highest = x.amax(1, keepdim=True)  # the search is for values with a minimum below 0
    scale, minimum = _fit_with_minimum(x - highest, importance, layout)
    return scale, highest - minimum
