"""Which schemes the weights of a checkpoint have, by its config."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.weights.weight_scheme import Quantization

#: Values of `quant_method` in a config -> file of `mrs.quantization` and function. A file is
#: imported when a config names it, because each lengthens the start of every command that plans.
METHODS = {
    "awq": ("awq", "read_awq"),
    "bitsandbytes": ("bitsandbytes", "read_bitsandbytes"),
    "compressed-tensors": ("compressed_tensors", "read_compressed_tensors"),
    "fbgemm_fp8": ("fp8", "read_fbgemm"),
    "fp8": ("fp8", "read_fp8"),
    "gptq": ("gptq", "read_gptq"),
    "hqq": ("hqq", "read_hqq"),
    "modelopt": ("fp8", "read_modelopt"),
    "mxfp4": ("fp4", "read_mxfp4"),
    "uqff": ("uqff", "read_uqff"),
}


def read_quantization(config: Config) -> Quantization | None:
    """The schemes that a config names, if any; Unsupported if they cannot be decoded."""
    for key in ("quantization_config", "quantization"):
        if config.mapping(key):  # an empty one is none
            break
    else:
        return None
    inner = Config(config.mapping(key), config.where)
    method = inner.values.get("quant_method")
    if method is None and inner.has("bits") and inner.has("group_size"):
        return _reader("mlx", "read_mlx")(inner)
    if method not in METHODS:
        raise Unsupported(
            f"the quantization {method!r} is not supported",
            where=config.where,
            hint=f"supported are MLX's and {', '.join(METHODS)}",
        )
    try:
        return _reader(*METHODS[method])(inner)
    except NotReadable as error:
        raise NotReadable(f"{key}: {error.what}", where=error.where, hint=error.hint) from error


def _reader(file: str, function: str) -> Callable[[Config], Quantization]:
    read: Callable[[Config], Quantization] = getattr(
        import_module(f"mrs.quantization.{file}"), function
    )
    return read
