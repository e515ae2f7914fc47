"""Read norms from the usual config keys."""

from __future__ import annotations

from mrs.config.config import Config
from mrs.layers.norm.spec import Norm


def read_norm(config: Config, key: str = "rms_norm_eps", default: float = 1e-6) -> Norm:
    return Norm(eps=config.number(key, default))


def read_layer_norm(
    config: Config, key: str = "layer_norm_eps", *, default: float = 1e-5, bias: bool = True
) -> Norm:
    return Norm(eps=config.number(key, default), kind="layer", bias=bias)
