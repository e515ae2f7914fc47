"""Storage formats of tensors: names, block elements and block bytes. No torch.

The plain types of safetensors and the block types of GGUF (ggml) are entries of one table. Rows
are stored one after another, and each row is a whole number of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import prod


@dataclass(frozen=True, eq=False)
class Format:
    """One storage format; there is one object of each, in `FORMATS`.

    A block of `block_elements` values has `block_bytes` bytes. `ggml_type` is the format's id in
    GGUF files, None for formats of safetensors only.
    """

    name: str
    block_elements: int
    block_bytes: int
    ggml_type: int | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether several values share a block, so that rows are divisible at block boundaries."""
        return self.block_elements > 1

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_elements

    def size_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape`; ValueError if a row is not a whole number of blocks."""
        row_elements = shape[-1] if shape else 1
        if row_elements % self.block_elements:
            raise ValueError(
                f"rows of {row_elements} values are not a whole number of {self.name} blocks "
                f"({self.block_elements})"
            )
        return prod(shape) // self.block_elements * self.block_bytes


@dataclass(frozen=True)
class KVFormat:
    """The formats of cached keys and values: of both the same one, or each quantized."""

    keys: Format
    values: Format

    @property
    def name(self) -> str:
        """Such as F16, or Q8_0/Q4_0 for keys in Q8_0 and values in Q4_0."""
        names = self.keys.name, self.values.name
        return names[0] if self.keys == self.values else "/".join(names)

    @property
    def is_quantized(self) -> bool:
        return self.keys.is_quantized

    def rows_bytes(self, widths: Sequence[int], rows: int) -> int:
        """Bytes of `rows` rows of each width, of which the first is that of keys.

        ValueError if a row is not a whole number of blocks.
        """
        formats = (self.keys, *repeat(self.values, len(widths) - 1))
        return sum(
            each.size_bytes((rows, width)) for each, width in zip(formats, widths, strict=False)
        )


def _table(*rows: tuple[str, int, int, int | None]) -> dict[str, Format]:
    return {row[0]: Format(*row) for row in rows}


#: Bits of the INT formats, and sizes of groups. `INT4_128` has a float32 scale, a float32 minimum
#: and 128 codes of 4 bits; `FP8_128` has a float32 scale and 128 values of type F8_E4M3; `NF4_128`
#: has a float32 scale and 128 indices of 4 bits in the table of bitsandbytes. Weights of
#: safetensors files that fit no format of GGUF exactly are stored in these.
INT_BITS = (2, 3, 4, 8)
GROUP_SIZES = (32, 64, 128)

#: Every known format by its name, which is that of GGUF if GGUF has the format.
FORMATS: dict[str, Format] = _table(
    ("F32", 1, 4, 0),
    ("F16", 1, 2, 1),
    ("BF16", 1, 2, 30),
    ("F64", 1, 8, 28),
    ("F8_E4M3", 1, 1, None),
    ("F8_E5M2", 1, 1, None),
    ("I8", 1, 1, 24),
    ("I16", 1, 2, 25),
    ("I32", 1, 4, 26),
    ("I64", 1, 8, 27),
    ("U8", 1, 1, None),
    ("U16", 1, 2, None),
    ("U32", 1, 4, None),
    ("U64", 1, 8, None),
    ("BOOL", 1, 1, None),
    ("C64", 1, 8, None),
    ("F8_E8M0", 1, 1, None),
    ("F8_E4M3FNUZ", 1, 1, None),
    ("F8_E5M2FNUZ", 1, 1, None),
    ("F4", 2, 1, None),
    ("F6_E2M3", 4, 3, None),
    ("F6_E3M2", 4, 3, None),
    ("Q4_0", 32, 18, 2),
    ("Q4_1", 32, 20, 3),
    ("Q5_0", 32, 22, 6),
    ("Q5_1", 32, 24, 7),
    ("Q8_0", 32, 34, 8),
    ("Q8_1", 32, 40, 9),
    ("Q2_K", 256, 84, 10),
    ("Q3_K", 256, 110, 11),
    ("Q4_K", 256, 144, 12),
    ("Q5_K", 256, 176, 13),
    ("Q6_K", 256, 210, 14),
    ("Q8_K", 256, 292, 15),
    ("IQ2_XXS", 256, 66, 16),
    ("IQ2_XS", 256, 74, 17),
    ("IQ3_XXS", 256, 98, 18),
    ("IQ1_S", 256, 50, 19),
    ("IQ4_NL", 32, 18, 20),
    ("IQ3_S", 256, 110, 21),
    ("IQ2_S", 256, 82, 22),
    ("IQ4_XS", 256, 136, 23),
    ("IQ1_M", 256, 56, 29),
    ("TQ1_0", 256, 54, 34),
    ("TQ2_0", 256, 66, 35),
    ("MXFP4", 32, 17, 39),
    ("NVFP4", 64, 36, 40),
    ("Q1_0", 128, 18, 41),
    *((f"INT{bits}_{n}", n, n * bits // 8 + 8, None) for bits in INT_BITS for n in GROUP_SIZES),
    *((f"FP8_{n}", n, n + 4, None) for n in GROUP_SIZES),
    *((f"NF4_{n}", n, n // 2 + 4, None) for n in GROUP_SIZES),
)

#: Blocks of UQFF files that are no format of GGUF: values, and bytes of Q8_1 (a scale, a sum and
#: codes) and of F8Q8 (a scale and codes).
UQFF_BLOCK, UQFF_Q8_1_BYTES, UQFF_F8Q8_BYTES = 32, 36, 33


def kv_format_of(name: str) -> KVFormat:
    """The formats of `KVFormat.name`. KeyError for an unknown one."""
    keys, _, values = name.partition("/")
    return KVFormat(FORMATS[keys], FORMATS[values or keys])


GGML_FORMATS: dict[int, Format] = {
    f.ggml_type: f for f in FORMATS.values() if f.ggml_type is not None
}
