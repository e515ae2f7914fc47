"""What llama.cpp's converter writes of models with short convolutions or linear attention."""

from __future__ import annotations

from typing import Any

import gguf
from torch import Tensor


def hybrid_config(arch: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The config under the keys that others have, with what is given for each layer."""
    if arch != "lfm2":
        return config
    heads = config["num_key_value_heads"]
    return {
        **config,
        "rms_norm_eps": config["norm_eps"],
        "intermediate_size": tensors["model.layers.0.feed_forward.w1.weight"].shape[0],
        "num_key_value_heads": [heads * (t != "conv") for t in config["layer_types"]],
    }


def write_hybrid(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    if arch == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])


def converted_state_tensor(name: str, tensor: Tensor) -> Tensor:
    """A convolution's weight loses the dimension of one channel."""
    return tensor.squeeze(1) if name.endswith(("conv.conv.weight", "conv1d.weight")) else tensor
