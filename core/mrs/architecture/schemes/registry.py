"""The schemes of a checkpoint by its config."""

from __future__ import annotations

from collections.abc import Callable

from mrs.architecture.config import Config
from mrs.architecture.schemes.awq import read_awq
from mrs.architecture.schemes.bitsandbytes import read_bitsandbytes
from mrs.architecture.schemes.compressed_tensors import read_compressed_tensors
from mrs.architecture.schemes.fp4 import read_mxfp4
from mrs.architecture.schemes.fp8 import read_fbgemm, read_fp8, read_modelopt
from mrs.architecture.schemes.gptq import read_gptq
from mrs.architecture.schemes.hqq import read_hqq
from mrs.architecture.schemes.mlx import read_mlx
from mrs.architecture.weight_scheme import Quantization
from mrs.errors import NotReadable, Unsupported


def _read_uqff(config: Config) -> Quantization:
    from mrs.architecture.schemes.uqff import read_uqff

    return read_uqff(config)


#: By the config's `quant_method`.
METHODS: dict[str, Callable[[Config], Quantization]] = {
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "hqq": read_hqq,
    "modelopt": read_modelopt,
    "mxfp4": read_mxfp4,
    "uqff": _read_uqff,
}


def read_quantization(config: Config) -> Quantization | None:
    """The schemes that a config names, if any; Unsupported if they cannot be decoded."""
    for key in ("quantization_config", "quantization"):
        if config.has(key):
            break
    else:
        return None
    inner = Config(config.mapping(key), config.where)
    method = inner.values.get("quant_method")
    if method is None and inner.has("bits") and inner.has("group_size"):
        return read_mlx(inner)
    if method not in METHODS:
        raise Unsupported(
            f"the quantization {method!r} is not supported",
            where=config.where,
            hint=f"supported are MLX's and {', '.join(METHODS)}",
        )
    try:
        return METHODS[method](inner)
    except NotReadable as error:
        raise NotReadable(f"{key}: {error.what}", where=error.where, hint=error.hint) from error
