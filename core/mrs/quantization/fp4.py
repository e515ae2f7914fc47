"""4-bit floats (e2m1) in small groups: MXFP4 of gpt-oss, MXFP4 and NVFP4 of llm-compressor.

In memory, MXFP4 has the blocks of GGUF, and NVFP4 is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.formats import FORMATS
from mrs.weights.weight_scheme import (
    Layout,
    Misfit,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mxfp4(WeightScheme):
    """Groups of 32 values with an exponent: blocks (…, rows, groups, 16), scales (…, groups)."""

    name = "MXFP4"
    suffixes: ClassVar[Mapping[str, str]] = {"codes": "_blocks", "scales": "_scales"}
    marker = "codes"
    #: Codes in a value of the file.
    codes_together: ClassVar[int] = 2

    def layout(self, parts: Parts, columns: int) -> Layout:
        shape = parts["codes"].shape
        require(parts, "codes", ("U8",))
        if shape[-2:] != (columns // 32, 16) or columns % 32:
            raise Misfit(
                "codes", f"has shape {list(shape)}, expected [\u2026, {columns // 32}, 16]"
            )
        require(parts, "scales", ("U8",), shape[:-1])
        rows, _ = matrix_shape(parts, "scales")
        return Layout(rows, 4, 32, FORMATS["MXFP4"])

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.bits import pack_planes

        width = columns // self.codes_together
        codes = _nibbles(parts.rows("codes", rows, width).view(torch.uint8)).view(-1, 32)
        exponents = parts.rows("scales", rows, columns // 32).view(-1, 1)
        return torch.cat((exponents, pack_planes(codes, 16, 4)), 1).view(len(rows), -1)


class PackedMxfp4(Mxfp4):
    """MXFP4 with the codes in one matrix of bytes."""

    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight_packed", "scales": ".weight_scale"}

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, _ = matrix_shape(parts, "codes")
        require(parts, "codes", ("U8",), (rows, columns // 2))
        require(parts, "scales", ("U8", "F8_E8M0"), (rows, columns // 32))
        return Layout(rows, 4, 32, FORMATS["MXFP4"])


class MlxMxfp4(Mxfp4):
    """MXFP4 in words of eight codes, as MLX writes it; experts may be stacked."""

    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight", "scales": ".scales"}
    marker = "scales"
    codes_together = 8

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, _ = matrix_shape(parts, "codes")
        outer = parts["codes"].shape[:-1]
        require(parts, "codes", ("U32",), (*outer, columns // 8))
        require(parts, "scales", ("U8",), (*outer, columns // 32))
        return Layout(rows, 4, 32, FORMATS["MXFP4"])


@dataclass(frozen=True)
class Nvfp4(WeightScheme):
    """Groups of 16 values with a scale of type F8_E4M3; the tensor's own scale divides."""

    name = "NVFP4"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight_packed",
        "scales": ".weight_scale",
        "divisor": ".weight_global_scale",
        "input": ".input_global_scale",
    }
    marker = "codes"
    unused = ("input",)

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, _ = matrix_shape(parts, "codes")
        require(parts, "codes", ("U8",), (rows, columns // 2))
        require(parts, "scales", ("F8_E4M3",), (rows, columns // 16))
        require(parts, "divisor", ("F32",), (1,), ())
        return Layout(rows, 4, 16, FORMATS["F32"])

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.bits import bytes_of
        from mrs.quantization.gguf.fp4 import e2m1_values

        values = e2m1_values(_nibbles(parts.rows("codes", rows))).view(len(rows), -1, 16)
        scales = parts.rows("scales", rows).view(torch.float8_e4m3fn).float()
        scales = scales / parts.floats("divisor").reshape(())
        return bytes_of((values * scales.unsqueeze(-1)).flatten(1))


def _nibbles(packed: Tensor) -> Tensor:
    """The codes of bytes (R, n), the low nibble first: uint8 (R, 2 * n)."""
    import torch

    return torch.stack((packed & 15, packed >> 4), -1).flatten(1)


def read_mxfp4(config: Config) -> Quantization:
    return Quantization((Mxfp4(),))
