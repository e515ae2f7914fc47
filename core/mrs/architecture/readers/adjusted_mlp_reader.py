"""Read an MLP whose config states a size that is to be adjusted."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp


def read_adjusted_mlp(config: Config) -> Mlp:
    """An MLP of the stated size, or of two thirds of it, times a factor, in whole multiples."""
    size = config.positive("block_ff_dim", config.integer("intermediate_size", 0))
    if not config.flag("block_auto_adjust_ff_dim", False):
        return Mlp(size)
    size = int(2 * size / 3)
    if config.has("block_ffn_dim_multiplier"):
        size = int(config.positive_number("block_ffn_dim_multiplier") * size)
        multiple = config.positive("block_multiple_of", 256)
        size = -(-size // multiple) * multiple
    return Mlp(size)
