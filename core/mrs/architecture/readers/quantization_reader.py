"""Quantized weights in safetensors files: values and scales in separate tensors."""

from __future__ import annotations

from mrs.architecture.binding import Quantization
from mrs.architecture.config import Config
from mrs.errors import Unsupported


def read_quantization(config: Config) -> Quantization | None:
    """The scheme in `quantization_config`, if there is one; Unsupported if it cannot be decoded."""
    if not config.has("quantization_config"):
        return None
    inner = Config(config.mapping("quantization_config"), config.where)
    method = inner.values.get("quant_method")
    if method == "mxfp4":
        return Quantization("_blocks", "_scales", (1, 32))
    if method != "fp8":
        raise Unsupported(f"the quantization {method!r} is not supported", where=config.where)
    inner.allow_only("fmt", "e4m3")
    tile = inner.values.get("weight_block_size")
    if tile != [128, 128]:
        raise Unsupported(
            f"fp8 with weight_block_size = {tile!r} is not supported",
            where=config.where,
            hint="only [128, 128] is supported",
        )
    return Quantization("", "_scale_inv", (128, 128))
