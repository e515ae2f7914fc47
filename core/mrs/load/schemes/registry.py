"""What unpacks the rows of each scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mrs.architecture.schemes.awq import Awq
from mrs.architecture.schemes.bitsandbytes import RowInts, TableCodes
from mrs.architecture.schemes.compressed_tensors import PackedInts, PlainInts
from mrs.architecture.schemes.fp4 import MlxMxfp4, Mxfp4, Nvfp4, PackedMxfp4
from mrs.architecture.schemes.fp8 import Fp8, ScaledFp8
from mrs.architecture.schemes.gptq import Gptq
from mrs.architecture.schemes.hqq import Hqq
from mrs.architecture.schemes.mlx import Mlx
from mrs.architecture.schemes.uqff import (
    Afq,
    F8q8,
    Q8Sum,
    StackedMxfp4,
    StridedHqq,
    TensorFp8,
)
from mrs.architecture.weight_scheme import Layout, WeightScheme
from mrs.load.schemes import awq, bitsandbytes, compressed_tensors, fp4, fp8, gptq, hqq, mlx, uqff
from mrs.load.schemes.part_reader import PartReader

#: Adjacent rows of a weight as blocks of its layout's format: uint8 (R, row_bytes). The arguments
#: are the scheme, the layout, the parts, the rows and the number of columns.
Unpack = Callable[[Any, Layout, PartReader, range, int], Tensor]

UNPACK: dict[type[WeightScheme], Unpack] = {
    Afq: mlx.unpack,
    Awq: awq.unpack,
    F8q8: uqff.unpack_f8q8,
    Fp8: fp8.unpack,
    Gptq: gptq.unpack,
    Hqq: hqq.unpack,
    Mlx: mlx.unpack,
    MlxMxfp4: fp4.unpack_mxfp4,
    Mxfp4: fp4.unpack_mxfp4,
    Nvfp4: fp4.unpack_nvfp4,
    PackedInts: compressed_tensors.unpack_packed,
    PackedMxfp4: fp4.unpack_mxfp4,
    PlainInts: compressed_tensors.unpack_plain,
    Q8Sum: uqff.unpack_q8_1,
    RowInts: bitsandbytes.unpack_rows,
    ScaledFp8: fp8.unpack,
    StackedMxfp4: fp4.unpack_mxfp4,
    StridedHqq: uqff.unpack_hqq,
    TableCodes: bitsandbytes.unpack_table,
    TensorFp8: fp8.unpack,
}
