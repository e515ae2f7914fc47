"""compressed-tensors, as llm-compressor writes them: integers, packed or not, and floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.quantization.affine import (
    ALIGNED_ROWS,
    FLOATS,
    affine_format,
    bits_of_words,
    columns_of_group,
)
from mrs.quantization.fp4 import Nvfp4, PackedMxfp4
from mrs.quantization.fp8 import ScaledFp8
from mrs.weights.weight_scheme import (
    Layout,
    Misfit,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
    rows_of,
)

if TYPE_CHECKING:
    from torch import Tensor

#: Other widths are packed differently by old and new programs.
_BITS = (4, 8, 2)


@dataclass(frozen=True)
class PackedInts(WeightScheme):
    """Codes in words of 32 bits along the inputs. A weight is scale * (code - zero).

    `bits` is None if they differ between weights.
    """

    name = "compressed-tensors"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight_packed",
        "scales": ".weight_scale",
        "zeros": ".weight_zero_point",
        "order": ".weight_g_idx",
        "shape": ".weight_shape",
        "input": ".input_scale",
    }
    marker = "codes"
    optional = ("zeros", "order")
    unused = ("shape", "input")

    bits: int | None

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, words = matrix_shape(parts, "codes")
        bits = bits_of_words(parts, "codes", words, columns, self.bits, _BITS)
        groups = _groups_of_rows(parts, rows)
        require(parts, "codes", ("I32",))
        if "zeros" in parts:
            require(parts, "zeros", ("I32",), (-(-rows * bits // 32), groups))
        if "order" in parts:
            require(parts, "order", ("I32", "I64"), (columns,))
        group = columns_of_group(parts, "scales", groups, columns, None)
        scales = parts["scales"].format
        format = affine_format(bits, group, columns, scales, is_symmetric="zeros" not in parts)
        return Layout(rows, bits, group, format, "order" in parts and groups > 1)

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.affine_blocks import (
            affine_blocks,
            group_order,
            scale_rows,
            unpack_stream,
        )

        codes = unpack_stream(parts.rows("codes", rows), layout.bits, columns)
        order = group_order(parts, layout, columns)
        codes = codes if order is None else codes[:, order]
        scales = scale_rows(parts, layout, rows)
        zeros = torch.full_like(scales, 1 << layout.bits - 1)
        if "zeros" in parts:
            first, bits = rows.start // ALIGNED_ROWS * ALIGNED_ROWS, layout.bits
            words = range(first * bits // 32, -(-rows.stop * bits // 32))
            stored = unpack_stream(parts.rows("zeros", words).T, bits, rows.stop - first)
            zeros = stored[:, rows.start - first :].T.float()
        return affine_blocks(layout, codes, scales, zeros=zeros)


@dataclass(frozen=True)
class PlainInts(WeightScheme):
    """Codes of 8 bits, signed, with a scale for the tensor, for each row or each group."""

    name = "compressed-tensors"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".weight_scale",
        "zeros": ".weight_zero_point",
        "input": ".input_scale",
        "input zeros": ".input_zero_point",
    }
    marker = "scales"
    optional = ("zeros",)
    unused = ("input", "input zeros")

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = rows_of(parts, "codes", columns)
        require(parts, "codes", ("I8",))
        groups = _groups_of_rows(parts, rows)
        if "zeros" in parts:
            require(parts, "zeros", ("I8",), parts["scales"].shape)
        group = columns_of_group(parts, "scales", groups, columns, None)
        scales = parts["scales"].format
        format = affine_format(8, group, columns, scales, is_symmetric="zeros" not in parts)
        return Layout(rows, 8, group, format)

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.affine_blocks import affine_blocks, scale_rows

        codes = parts.rows("codes", rows).view(torch.uint8) ^ 0x80
        scales = scale_rows(parts, layout, rows)
        zeros = torch.full_like(scales, 128)
        if "zeros" in parts:
            zeros += scale_rows(parts, layout, rows, "zeros")
        return affine_blocks(layout, codes, scales, zeros=zeros)


def _groups_of_rows(parts: Parts, rows: int) -> int:
    """Groups of a row; Misfit unless there is one scale, or as many for each row."""
    shape = parts["scales"].shape
    require(parts, "scales", FLOATS)
    if shape in ((), (1,)):
        return 1
    height, groups = matrix_shape(parts, "scales") if len(shape) > 1 else (shape[0], 1)
    if height != rows and shape != (1, 1):
        raise Misfit("scales", f"has shape {list(shape)}, expected [{rows}, {groups}]")
    return groups


def read_compressed_tensors(config: Config) -> Quantization:
    if config.mapping("transform_config").get("config_groups") or config.mapping("sparsity_config"):
        raise Unsupported(
            "compressed-tensors with rotated or sparse weights are not supported",
            where=config.where,
        )
    schemes: list[WeightScheme] = []
    for name, values in config.mapping("config_groups").items():
        if not isinstance(values, dict):
            raise NotReadable(f"{name} = {values!r} is not an object", where=config.where)
        group = Config(values, config.where)
        schemes.append(_scheme(group, group.text("format", config.text("format", ""))))
    if len({scheme for scheme in schemes if isinstance(scheme, PackedInts)}) > 1:
        schemes = [PackedInts(None) if isinstance(each, PackedInts) else each for each in schemes]
    return Quantization(tuple(dict.fromkeys(schemes)))


def _scheme(group: Config, format: str) -> WeightScheme:
    weights = Config(group.mapping("weights"), group.where)
    bits, kind = weights.positive("num_bits"), weights.text("type", "int")
    make = _FORMATS.get(format) or _FORMATS.get(f"{format} {kind}")
    if make is None or (format == "pack-quantized" and bits not in _BITS):
        raise Unsupported(
            f"compressed-tensors of format {format!r} with {bits} bits are not supported",
            where=group.where,
        )
    return make(weights, bits)


def _plain(weights: Config, bits: int) -> WeightScheme:
    if bits != 8:
        raise Unsupported(f"{bits} bits in tensors of bytes are not supported", where=weights.where)
    return PlainInts()


def _floats(weights: Config, bits: int) -> WeightScheme:
    structure = None
    if weights.values.get("strategy") == "block":
        rows, columns = (int(n) for n in weights.numbers("block_structure", 2, above=0))
        structure = rows, columns
    return ScaledFp8(structure)


_FORMATS: dict[str, Callable[[Config, int], WeightScheme]] = {
    "pack-quantized": lambda weights, bits: PackedInts(bits),
    "int-quantized": _plain,
    "naive-quantized int": _plain,
    "float-quantized": _floats,
    "naive-quantized float": _floats,
    "nvfp4-pack-quantized": lambda weights, bits: Nvfp4(),
    "mxfp4-pack-quantized": lambda weights, bits: PackedMxfp4(),
}
