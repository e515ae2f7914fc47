"""Read which schemes of compressed-tensors the weights of a checkpoint have."""

from __future__ import annotations

from collections.abc import Callable

from mrs.architecture.config import Config
from mrs.architecture.schemes.compressed_tensors import BITS, PackedInts, PlainInts
from mrs.architecture.schemes.fp4 import Nvfp4, PackedMxfp4
from mrs.architecture.schemes.fp8 import ScaledFp8
from mrs.architecture.weight_scheme import Quantization, WeightScheme
from mrs.errors import NotReadable, Unsupported


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
    if make is None or (format == "pack-quantized" and bits not in BITS):
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
