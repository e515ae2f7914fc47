"""Blocks of integer codes with a scale, and a zero or a bias, for each group of columns."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.errors import NotReadable
from mrs.quantization.gguf.bits import bytes_of, fields, pack_planes
from mrs.quantization.gguf.grouped import int_blocks
from mrs.weights.weight_scheme import Layout, PartReader

_WORD_BITS = 32


def unpack_stream(words: Tensor, bits: int, count: int) -> Tensor:
    """`count` values of each row of int32 words (n, W), lowest bits first: uint8 (n, count)."""
    words = words.contiguous()
    if 8 % bits == 0:  # no value crosses a byte, and bytes are faster to work with than words
        return fields(words.view(torch.uint8), 8 // bits, bits)[:, :count]
    unsigned = words.long() & 0xFFFFFFFF
    unsigned = torch.nn.functional.pad(unsigned, (0, 1))  # after the last word
    first = torch.arange(count) * bits
    word, shift = first // _WORD_BITS, first % _WORD_BITS
    values = unsigned[:, word] >> shift | unsigned[:, word + 1] << _WORD_BITS - shift
    return (values & (1 << bits) - 1).to(torch.uint8)


def group_order(parts: PartReader, layout: Layout, columns: int) -> Tensor | None:
    """The columns sorted by group, int64 (columns,); None if their order is that of the file.

    Raises NotReadable for groups of other sizes, or in an order that the config excludes.
    """
    if "order" not in parts:
        return None
    groups = parts.whole("order").long()
    expected = torch.arange(columns) // layout.group
    order = torch.argsort(groups, stable=True) if layout.is_permuted else torch.arange(columns)
    if layout.group == columns and not groups.any():
        return None
    if not torch.equal(groups[order], expected):
        raise NotReadable(
            f"the tensor {parts.name('order')!r} does not say groups of {layout.group} columns"
            + ("" if layout.is_permuted else " in order")
        )
    return order if layout.is_permuted else None


def scale_rows(parts: PartReader, layout: Layout, rows: range, role: str = "scales") -> Tensor:
    """Scales of some rows in float32 (R, groups), from one scale, or those of each row."""
    shape = parts.shape(role)
    if shape[:1] != (layout.rows,) and len(shape) < 3:
        return parts.floats(role).reshape(1, 1).expand(len(rows), 1)
    width = shape[-1] if len(shape) > 1 else 1
    return parts.rows(role, rows, width).float()


def affine_blocks(
    layout: Layout,
    codes: Tensor,
    scales: Tensor,
    *,
    zeros: Tensor | None = None,
    biases: Tensor | None = None,
) -> Tensor:
    """Rows of blocks of the layout's format: uint8 (R, row_bytes).

    `codes` uint8 (R, columns); `scales`, and `zeros` or `biases`, (R, groups) in float32. A value
    is scale * (code - zero), or scale * code + bias. Raises NotReadable for other zeros in a
    symmetric format.
    """
    rows, columns = codes.shape
    format, middle = layout.format, 1 << layout.bits - 1
    each = format.block_elements if format.is_quantized else 1
    group = torch.arange(0, columns, each) // layout.group
    scales = scales[:, group]
    zeros = None if zeros is None else zeros[:, group]
    biases = None if biases is None else biases[:, group]
    if format.name == "F32":
        if zeros is not None:
            return bytes_of((codes.float() - zeros) * scales)
        assert biases is not None
        return bytes_of(codes.float() * scales + biases)
    codes = codes.reshape(-1, each)
    scales = scales.reshape(-1)
    if format.name == "Q4_1":
        assert biases is not None
        packed = pack_planes(codes, 16, 4)
        return torch.cat((_half(scales), _half(biases), packed), 1).view(rows, -1)
    if format.name in ("Q4_0", "Q8_0"):
        if zeros is None or bool((zeros != middle).any()):
            raise NotReadable("the zeros of a weight differ, though its config says symmetric")
        packed = pack_planes(codes, 16, 4) if layout.bits == 4 else codes ^ 0x80
        return torch.cat((_half(scales), packed), 1).view(rows, -1)
    minima = -scales * zeros.reshape(-1) if zeros is not None else biases
    assert minima is not None
    minima = minima.reshape(-1)
    if layout.bits == 8:  # stored as signed codes
        codes, minima = (codes ^ 0x80).view(torch.int8), minima + middle * scales
    bits = 8 * (format.block_bytes - 8) // each
    return int_blocks(codes.view(torch.int8) if bits == 8 else codes, scales, minima, bits).view(
        rows, -1
    )


def _half(values: Tensor) -> Tensor:
    return bytes_of(values.half().reshape(-1, 1))
