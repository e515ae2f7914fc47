"""Apertus: QK norm, and an MLP without gate whose activation has learned numbers in each layer."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import with_default_rope

XIELU_KEYS = ("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps")
#: Config key -> metadata key of GGUF files.
XIELU_GGUF_KEYS = {key: key for key in XIELU_KEYS}
DEFAULT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def read(config: Config) -> ModelSpec:
    # GGUF files have the base, and factors as a tensor.
    if not config.has("rope_theta"):
        config = with_default_rope(config, DEFAULT_ROPE)
    norm, rope = read_norm(config, default=1e-5), read_head_rope(config, default_base=12e6)
    attention = biased_attention(config, rope=rope, qk_norm=norm)
    layers = [Layer(attention, mlp, norm) for mlp in read_xielu_mlps(config)]
    return decoder(config, "apertus", layers, norm)


def read_xielu_mlps(config: Config) -> list[Mlp]:
    """The MLP of each layer; GGUF files have the numbers in their metadata, others in tensors."""
    is_xielu = config.values.get("hidden_act", "xielu") == "xielu"
    activation = "xielu" if is_xielu else config.activation()
    mlp = Mlp(config.positive("intermediate_size"), activation, gated=False)
    count = layer_count(config)
    if not config.has(XIELU_KEYS[0]):
        return [mlp] * count
    numbers = zip(*(config.numbers(key, count) for key in XIELU_KEYS), strict=True)
    return [replace(mlp, xielu_values=values) for values in numbers]


FAMILY = Family(
    "apertus",
    read,
    gguf_arch="apertus",
    gguf_keys=XIELU_GGUF_KEYS,
    defaults={"max_position_embeddings": 65_536},
    safetensors={"mixer.norm": "attention_layernorm", "ffn.norm": "feedforward_layernorm"},
)
