"""Read an MLP from the usual config keys."""

from __future__ import annotations

from typing import Any

from mrs.config.activations import Activation
from mrs.config.config import Config
from mrs.layers.mlp.spec import Mlp


def read_gelu(config: Config) -> Activation:
    """The activation of models that have GELU, approximated by tanh, unless they say otherwise."""
    return config.activation("gelu_pytorch_tanh", "hidden_activation")


def read_mlp(config: Config, key: str = "intermediate_size", **changes: Any) -> Mlp:
    """An MLP, or that of an expert, of the size `key`; `changes` override its fields."""
    fields: dict[str, Any] = {"activation": config.activation(), **changes}
    return Mlp(config.positive(key), **fields)


def read_relu2_mlp(config: Config, *, bias: bool) -> Mlp:
    """An MLP of squared ReLUs, without a gate; `bias` is what a config without `mlp_bias` means."""
    activation = config.activation("relu2")
    return read_mlp(config, activation=activation, gated=False, bias=config.flag("mlp_bias", bias))
