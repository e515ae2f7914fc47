"""GPTQ: codes of 32 bits along the inputs, transposed; groups may be in any order (`g_idx`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.quantization.affine import (
    ALIGNED_ROWS,
    FLOATS,
    affine_format,
    bits_of_words,
    columns_of_group,
)
from mrs.weights.weight_scheme import (
    Layout,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor

_BITS = (4, 8, 3, 2)


@dataclass(frozen=True)
class Gptq(WeightScheme):
    """A weight is scale * (code - zero). `zero_offset` is added to the zeros of the file.

    `bits` and `group` are None if they differ between weights.
    """

    name = "GPTQ"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".qweight",
        "zeros": ".qzeros",
        "scales": ".scales",
        "order": ".g_idx",
    }
    marker = "codes"
    optional = ("order",)

    bits: int | None
    group: int | None
    is_symmetric: bool
    is_ordered: bool
    zero_offset: int

    def layout(self, parts: Parts, columns: int) -> Layout:
        words, rows = matrix_shape(parts, "codes")
        groups, _ = matrix_shape(parts, "scales")
        bits = bits_of_words(parts, "codes", words, columns, self.bits, _BITS)
        group = columns_of_group(parts, "scales", groups, columns, self.group)
        require(parts, "codes", ("I32",), (words, rows))
        require(parts, "scales", FLOATS, (groups, rows))
        require(parts, "zeros", ("I32",), (groups, -(-rows * bits // 32)))
        if "order" in parts:
            require(parts, "order", ("I32", "I64"), (columns,))
        scales = parts["scales"].format
        format = affine_format(bits, group, columns, scales, is_symmetric=self.is_symmetric)
        is_permuted = not self.is_ordered and groups > 1 and "order" in parts
        return Layout(rows, bits, group, format, is_permuted)

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        from mrs.quantization.gguf.affine_blocks import affine_blocks, group_order, unpack_stream

        first = rows.start // ALIGNED_ROWS * ALIGNED_ROWS
        last = min(-(-rows.stop // ALIGNED_ROWS) * ALIGNED_ROWS, layout.rows)
        count, bits = last - first, layout.bits
        codes = unpack_stream(parts.columns("codes", range(first, last)).T, bits, columns)
        words = range(first * bits // 32, -(-last * bits // 32))
        stored = unpack_stream(parts.columns("zeros", words), bits, count).T
        zeros = (stored + self.zero_offset & (1 << bits) - 1).float()
        scales = parts.columns("scales", range(first, last)).T.float()
        order = group_order(parts, layout, columns)
        codes = codes if order is None else codes[:, order]
        inside = slice(rows.start - first, rows.stop - first)
        return affine_blocks(layout, codes[inside], scales[inside], zeros=zeros[inside])


def read_gptq(config: Config) -> Quantization:
    config.allow_only("pack_dtype", "int32")
    version = config.text("checkpoint_format", config.values.get("format", "gptq"))
    if version not in ("gptq", "gptq_v2") or config.values.get("is_marlin_format"):
        raise Unsupported(f"GPTQ files of format {version!r} are not supported", where=config.where)
    bits = config.positive("bits")
    if bits not in _BITS:
        raise Unsupported(f"GPTQ with {bits} bits is not supported", where=config.where)
    is_uniform = not config.mapping("dynamic")
    scheme = Gptq(
        bits=bits if is_uniform else None,
        group=group_of(config) if is_uniform else None,
        is_symmetric=is_uniform and config.flag("sym", False),
        is_ordered=not config.flag("desc_act", False),
        zero_offset=0 if version == "gptq_v2" else 1,
    )
    return Quantization((scheme,))


def group_of(config: Config, key: str = "group_size") -> int:
    """Columns of a group; -1: a row is one group."""
    return -1 if config.values.get(key) == -1 else config.positive(key)
