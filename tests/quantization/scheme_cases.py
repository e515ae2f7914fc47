"""The schemes of the tests, with the config of a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from packers import (
    Scheme,
    awq,
    float8,
    gptq,
    hqq,
    mlx,
    mlx_mxfp4,
    mxfp4,
    nvfp4,
    packed_ints,
    plain_ints,
    row_ints,
    table4,
)


def _gptq(id: str, bits: int, size: int, label: str = "", **kind: Any) -> Scheme:
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "sym": kind["sym"],
        "desc_act": kind.get("order", False),
        "checkpoint_format": "gptq_v2" if kind.get("v2") else "gptq",
    }
    return Scheme(f"gptq-{id}", config, gptq(bits, size, **kind), f"GPTQ {bits}-bit")


def _tensors(id: str, format: str, pack: Any, label: str, **weights: Any) -> Scheme:
    group = {"targets": ["Linear"], "weights": weights}
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return Scheme(f"compressed-{id}", config, pack, label)


def _packed(id: str, bits: int, size: int, **kind: Any) -> Scheme:
    label = f"compressed-tensors {bits}-bit"
    weights = {"num_bits": bits, "type": "int", "group_size": size}
    return _tensors(id, "pack-quantized", packed_ints(bits, size, **kind), label, **weights)


def _mlx(bits: int, size: int, dtype: torch.dtype) -> Scheme:
    name = f"mlx-{bits}-{size}-{str(dtype).removeprefix('torch.')}"
    config = {"group_size": size, "bits": bits}
    return Scheme(name, config, mlx(bits, size, dtype), f"MLX {bits}-bit")


def _hqq(bits: int, size: int) -> Scheme:
    params = {"nbits": bits, "group_size": size, "axis": 1}
    config = {"quant_method": "hqq", "quant_config": {"weight_quant_params": params}}
    return Scheme(f"hqq-{bits}", config, hqq(bits, size), f"HQQ {bits}-bit")


_FP8 = {"quant_method": "fp8", "fmt": "e4m3"}
_BNB = {"quant_method": "bitsandbytes"}
_FLOAT8 = {"num_bits": 8, "type": "float"}

SCHEMES = (
    _gptq("sym", 4, 128, sym=True),
    _gptq("asym", 4, 128, sym=False),
    _gptq("v2", 4, 32, sym=False, v2=True),
    _gptq("act-order", 4, 64, sym=False, order=True),
    _gptq("act-order-odd", 4, 16, sym=True, order=True),
    _gptq("row", 4, -1, sym=True),
    _gptq("8", 8, 128, sym=True),
    _gptq("8-asym", 8, 64, sym=False),
    _gptq("3", 3, 128, sym=False),
    _gptq("2", 2, 64, sym=False, v2=True),
    Scheme("awq", {"quant_method": "awq", "bits": 4, "group_size": 128}, awq(128), "AWQ 4-bit"),
    _packed("4", 4, 128),
    _packed("4-f16", 4, 32, dtype=torch.float16),
    _packed("4-row", 4, -1),
    _packed("4-zeros", 4, 128, zeros=True),
    _packed("4-order", 4, 32, order=True),
    _packed("8", 8, -1),
    _tensors("int8", "int-quantized", plain_ints, "compressed-tensors 8-bit", num_bits=8),
    _tensors(
        "fp8", "float-quantized", float8(".weight_scale", "row", torch.bfloat16), "FP8", **_FLOAT8,
    ),
    _tensors(
        "fp8-block", "float-quantized", float8(".weight_scale", "tile"), "FP8",
        **_FLOAT8, strategy="block", block_structure=[128, 128],
    ),
    _tensors("nvfp4", "nvfp4-pack-quantized", nvfp4, "NVFP4", num_bits=4, type="float"),
    _tensors("mxfp4", "mxfp4-pack-quantized", mxfp4, "MXFP4", num_bits=4, type="float"),
    Scheme(
        "fp8-tensor", {**_FP8, "weight_block_size": None},
        float8(".weight_scale_inv", "tensor", torch.bfloat16), "FP8",
    ),
    Scheme(
        "fp8-tile", {**_FP8, "weight_block_size": [128, 128]},
        float8(".weight_scale_inv", "tile"), "FP8",
    ),
    Scheme("fbgemm", {"quant_method": "fbgemm_fp8"}, float8(".weight_scale", "row"), "FP8"),
    Scheme(
        "modelopt", {"quant_method": "modelopt", "quant_algo": "FP8"},
        float8(".weight_scale", "tensor"), "FP8",
    ),
    Scheme(
        "bnb-nf4", {**_BNB, "load_in_4bit": True},
        table4("nf4", is_nested=False), "bitsandbytes 4-bit",
    ),
    Scheme(
        "bnb-fp4", {**_BNB, "load_in_4bit": True},
        table4("fp4", is_nested=False), "bitsandbytes 4-bit",
    ),
    Scheme(
        "bnb-nested", {**_BNB, "load_in_4bit": True},
        table4("nf4", is_nested=True), "bitsandbytes 4-bit",
    ),
    Scheme("bnb-int8", {**_BNB, "load_in_8bit": True}, row_ints, "bitsandbytes 8-bit"),
    _hqq(4, 64),
    _hqq(8, 128),
    _hqq(2, 32),
    _mlx(4, 64, torch.float16),
    _mlx(4, 64, torch.bfloat16),
    _mlx(8, 32, torch.bfloat16),
    _mlx(6, 64, torch.bfloat16),
    _mlx(3, 128, torch.float16),
    _mlx(2, 64, torch.float32),
    Scheme("mlx-mxfp4", {"group_size": 32, "bits": 4, "mode": "mxfp4"}, mlx_mxfp4, "MXFP4"),
)  # fmt: skip
BY_ID = {scheme.id: scheme for scheme in SCHEMES}
