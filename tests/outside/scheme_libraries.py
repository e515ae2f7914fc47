"""Weights that the libraries of the published schemes quantized are decoded as these decode them.

    python tests/outside/scheme_libraries.py [WORD …]

Each library quantizes the projections of a tiny random Llama, and decodes them itself in float32;
mrs loads the tensors and has to have equal values. Prints one line for each case: equal, the
largest difference in relation to the largest weight, or why the library is left out. WORDs choose
cases by parts of their names. Install what is to be compared, without what it depends on:

    pip install --no-deps compressed-tensors loguru bitsandbytes hqq termcolor auto-gptq autoawq \
        torchao mlx mlx-cpu
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "quantization"), str(TESTS / "families")]

from checkpoints import make_checkpoint
from packers import Generator, Packed, Scheme
from running import load

from mrs.request import ModelSource

#: The largest difference that rounding a scale and a minimum to float32 explains.
ROUNDED = 2.0**-22
Quantize = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
Case = tuple[str, dict[str, Any], Quantize]


def scheme(name: str, config: dict[str, Any], quantize: Quantize) -> Scheme:
    def pack(rng: Generator, rows: int, columns: int) -> Packed:
        weight = torch.from_numpy(rng.normal(0, 0.02, (rows, columns))).float()
        tensors, values = quantize(weight)
        return tensors, values.detach().double().numpy()

    return Scheme(name, config, pack, name)


def compressed_tensors() -> Iterator[Case]:
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    def case(name: str, format: str, **kind: Any) -> Case:
        args = QuantizationArgs(**kind)
        used = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry(format)

        def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            state = {"weight": weight}
            groups = weight.reshape(len(weight), -1, kind.get("group_size", weight.shape[1]))
            low, high = groups.amin(-1), groups.amax(-1)
            if kind["strategy"] == "tensor":
                low, high = weight.amin().view(1), weight.amax().view(1)
            extra = {}
            if format == "nvfp4-pack-quantized":
                largest = weight.abs().max().view(1)
                extra["global_scale"] = state["weight_global_scale"] = 448 * 6 / largest
            scale, zero = calculate_qparams(low, high, args, **extra)
            if not extra and format != "mxfp4-pack-quantized":
                scale = scale.bfloat16().float()
            state |= {"weight_scale": scale, "weight_zero_point": zero}
            made = compressor.compress(state, used)
            if extra:  # its `decompress` computes in bf16
                codes = unpack_fp4_from_uint8(made["weight_packed"], *weight.shape, torch.float32)
                scale = made["weight_scale"].float() / state["weight_global_scale"]
                values = codes * scale.repeat_interleave(16, 1)
            else:
                values = compressor.decompress(dict(made), used)["weight"].float()
            if made["weight_scale"].dtype == torch.float32:
                made["weight_scale"] = made["weight_scale"].bfloat16()
            return {f".{key}": each for key, each in made.items()}, values

        group = {"targets": ["Linear"], "weights": kind}
        config = {
            "quant_method": "compressed-tensors",
            "format": format,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }
        return f"compressed-tensors {name}", config, quantize

    ints = {"type": "int", "symmetric": True}
    packed = "pack-quantized"
    for bits in (4, 8, 2):
        kind = {"num_bits": bits, "strategy": "group", "group_size": 128, **ints}
        yield case(f"int{bits} group", packed, **kind)
        yield case(f"int{bits} group with zeros", packed, **{**kind, "symmetric": False})
    yield case("int4 channel", packed, num_bits=4, strategy="channel", **ints)
    yield case("int8 channel", "int-quantized", num_bits=8, strategy="channel", **ints)
    floats = {"num_bits": 8, "type": "float", "symmetric": True}
    yield case("fp8 channel", "float-quantized", strategy="channel", **floats)
    yield case("fp8 tensor", "float-quantized", strategy="tensor", **floats)
    four = {"num_bits": 4, "type": "float", "symmetric": True}
    kind = {**four, "strategy": "group", "group_size": 32}
    yield case("mxfp4", "mxfp4-pack-quantized", **kind)
    kind = {**four, "strategy": "tensor_group", "group_size": 16}
    yield case("nvfp4", "nvfp4-pack-quantized", **kind)


def bitsandbytes() -> Iterator[Case]:
    from bitsandbytes import functional

    def four_bits(kind: str, *, nested: bool) -> Quantize:
        def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            codes, state = functional.quantize_4bit(
                weight, blocksize=64, quant_type=kind, compress_statistics=nested
            )
            values = functional.dequantize_4bit(codes, state)
            parts = {f".weight.{key}": each for key, each in state.as_dict(packed=True).items()}
            return {".weight": codes, **parts}, values

        return quantize

    def int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, largest, _ = functional.int8_vectorwise_quant(weight)
        values = functional.int8_vectorwise_dequant(codes, largest)
        form = torch.zeros((), dtype=torch.uint8)
        return {".weight": codes, ".SCB": largest, ".weight_format": form}, values

    config = {"quant_method": "bitsandbytes"}
    for kind in ("nf4", "fp4"):
        yield f"bitsandbytes {kind}", config, four_bits(kind, nested=False)
        yield f"bitsandbytes {kind} nested", config, four_bits(kind, nested=True)
    yield "bitsandbytes int8", config, int8


def hqq() -> Iterator[Case]:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    for bits in (8, 4, 2):

        def quantize(weight: Tensor, bits: int = bits) -> tuple[dict[str, Tensor], Tensor]:
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight.data = weight
            settings = BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
            made = HQQLinear(linear, settings, compute_dtype=torch.float32, device="cpu")
            state = {f".{key}": each for key, each in made.state_dict().items()}
            tensors = {key: each for key, each in state.items() if isinstance(each, Tensor)}
            return tensors, made.dequantize()

        params = {"nbits": bits, "group_size": 64, "axis": 1}
        config = {"quant_method": "hqq", "quant_config": {"weight_quant_params": params}}
        yield f"hqq {bits} bits", config, quantize


def module_of(package: str, path: str) -> Any:
    """One file of a package that cannot be imported with the newest libraries."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"No module named {package}")
    spec = spec_from_file_location(Path(path).stem, Path(found.submodule_search_locations[0], path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def auto_gptq() -> Iterator[Case]:
    """It packs random codes; their values follow from GPTQ's formula."""
    module = module_of("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py")

    def case(bits: int, *, order: bool) -> Case:
        def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            rows, columns = weight.shape
            chance = torch.Generator().manual_seed(int(weight.abs().sum() * 1e6))
            index = torch.arange(columns, dtype=torch.int32) // 128
            if order:
                index = index[torch.randperm(columns, generator=chance)]
            scales = (torch.rand(rows, columns // 128, generator=chance) / 50 + 0.01).half().float()
            zeros = torch.randint(1, 1 << bits, scales.shape, generator=chance).float()
            codes = torch.randint(0, 1 << bits, weight.shape, generator=chance)
            each = index.long()
            linear = torch.nn.Linear(columns, rows, bias=False)
            linear.weight.data = values = scales[:, each] * (codes - zeros[:, each])
            made = module.QuantLinear(bits, 128, columns, rows, False, weight_dtype=torch.float32)
            made.pack(linear, scales, zeros, index)
            tensors = {
                ".qweight": made.qweight,
                ".qzeros": made.qzeros,
                ".scales": made.scales.half(),
                ".g_idx": made.g_idx,
            }
            return tensors, values

        config = {"quant_method": "gptq", "bits": bits, "group_size": 128, "desc_act": order}
        name = f"auto-gptq {bits} bits{' in act-order' if order else ''}"
        return name, {**config, "sym": False}, quantize

    for bits in (2, 3, 4, 8):
        yield case(bits, order=False)
    yield case(4, order=True)


def awq() -> Iterator[Case]:
    """Its packing alone, which needs nothing but torch: random codes, decoded by the library."""
    module = module_of("awq", "utils/packing_utils.py")

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, columns = weight.shape
        rng = np.random.default_rng(int(weight.abs().sum() * 1e6))

        def words(*shape: int) -> Tensor:
            return torch.from_numpy(rng.integers(-(2**31), 2**31, shape).astype(np.int32))

        codes, zeros = words(columns, rows // 8), words(columns // 128, rows // 8)
        scales = torch.from_numpy(rng.uniform(0.01, 0.03, (columns // 128, rows))).half()
        values = module.dequantize_gemm(codes, zeros, scales.float(), 4, 128).T
        return {".qweight": codes, ".qzeros": zeros, ".scales": scales}, values

    yield "awq", {"quant_method": "awq", "bits": 4, "group_size": 128}, quantize


def mlx() -> Iterator[Case]:
    import mlx.core as mx

    def tensor(array: Any) -> Tensor:
        if array.dtype == mx.bfloat16:
            return torch.from_numpy(np.array(array.view(mx.uint16))).view(torch.bfloat16)
        return torch.from_numpy(np.array(array))

    def case(bits: int, group: int, mode: str, dtype: Any) -> Case:
        def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            array = mx.array(weight.numpy()).astype(dtype)
            codes, *rest = mx.quantize(array, group_size=group, bits=bits, mode=mode)
            wide = [each if each.dtype == mx.uint8 else each.astype(mx.float32) for each in rest]
            values = mx.dequantize(codes, *wide, group_size=group, bits=bits, mode=mode)
            names = (".weight", ".scales", ".biases")
            tensors = dict(zip(names, map(tensor, (codes, *rest)), strict=False))
            return tensors, tensor(values.astype(mx.float32))

        config = {"group_size": group, "bits": bits, "mode": mode}
        return f"mlx {mode} {bits} bits {str(dtype).rpartition('.')[2]}", config, quantize

    for bits in (2, 3, 4, 5, 6, 8):
        yield case(bits, 64, "affine", mx.float16)
    yield case(4, 64, "affine", mx.bfloat16)
    yield case(4, 32, "mxfp4", mx.float16)


def torchao() -> Iterator[Case]:
    """FP8 by rows, with the names that fbgemm's checkpoints have."""
    from torchao.quantization import PerRow
    from torchao.quantization.quantize_.workflows import Float8Tensor

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        made = Float8Tensor.from_hp(weight, granularity=PerRow())
        return {".weight": made.qdata, ".weight_scale": made.scale}, made.dequantize()

    yield "torchao fp8 rows", {"quant_method": "fbgemm_fp8"}, quantize


LIBRARIES = (compressed_tensors, bitsandbytes, hqq, auto_gptq, awq, mlx, torchao)


def difference(case: Case, folder: Path) -> str:
    """In relation to the largest weight."""
    made = make_checkpoint(scheme(*case), "llama", folder)
    loaded = [load(ModelSource(str(each), "safetensors")) for each in (made.packed, made.dense)]
    largest = 0.0
    for parameter in loaded[0].description.parameters:
        if parameter.role not in ("vector", "dense"):
            name = parameter.name.removesuffix(".weight")
            ours, theirs = (
                each.weights.matrix(name).rows(torch.arange(parameter.rows), torch.float32)
                for each in loaded
            )
            found = (ours - theirs).abs().max() / theirs.abs().max()
            largest = max(largest, float(found))
    if largest == 0:
        return "equal"
    return "rounded in float32" if largest <= ROUNDED else f"DIFFERS by {largest:.1e}"


def main(words: list[str]) -> int:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for library in LIBRARIES:
            try:
                cases = list(library())
            except Exception as error:  # noqa: BLE001 - a library that is absent or broken is not compared
                print(f"{library.__name__}: left out, {' '.join(str(error).split())[:120]}")
                continue
            for number, case in enumerate(cases):
                if words and not any(word in case[0] for word in words):
                    continue
                try:
                    found = difference(case, Path(folder) / f"{library.__name__}{number}")
                except Exception as error:  # noqa: BLE001 - the others are compared
                    found = f"FAILS: {' '.join(str(error).split())[:160]}"
                failed |= found.split()[0] in ("DIFFERS", "FAILS:")
                print(f"{case[0]:40} {found}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
