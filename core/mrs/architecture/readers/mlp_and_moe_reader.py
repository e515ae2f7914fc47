"""Read an MLP with experts beside it, which may be twice as wide in some layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.mixer import FeedForward
from mrs.architecture.mixers.mlp_and_moe_spec import MlpAndMoe
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.readers.layer_reader import read_gelu, read_mlp, read_norm
from mrs.architecture.readers.moe_reader import read_expert, read_router


def read_mlp_and_moe(config: Config, *, is_wide: bool) -> FeedForward:
    """An MLP, twice as wide if it `is_wide` and the config wants that, and experts if there are."""
    activation, norm = read_gelu(config), read_norm(config)
    mlp = read_mlp(config, activation=activation)
    if config.flag("use_double_wide_mlp", False) and is_wide:
        mlp = replace(mlp, intermediate=2 * mlp.intermediate)
    if not config.flag("enable_moe_block", False):
        return mlp
    router = read_router(config, norm_topk_prob=True, input_norm=norm, expert_scale=True)
    return MlpAndMoe(mlp, Moe(router, read_expert(config, activation=activation)), norm)
