"""Read MLPs without gate whose activation has learned numbers in each layer (xIELU)."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.readers.layer_kinds_reader import layer_count

_KEYS = ("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps")
#: Config key -> metadata key of GGUF files.
XIELU_GGUF_KEYS = {key: key for key in _KEYS}


def read_xielu_mlps(config: Config) -> list[Mlp]:
    """The MLP of each layer; GGUF files have the numbers in their metadata, others in tensors."""
    is_xielu = config.values.get("hidden_act", "xielu") == "xielu"
    activation = "xielu" if is_xielu else config.activation()
    mlp = Mlp(config.positive("intermediate_size"), activation, gated=False)
    count = layer_count(config)
    if not config.has(_KEYS[0]):
        return [mlp] * count
    numbers = zip(*(config.numbers(key, count) for key in _KEYS), strict=True)
    return [replace(mlp, xielu_values=values) for values in numbers]
