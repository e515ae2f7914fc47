"""GLM 4 (9B of 2024): biases on q, k and v, and interleaved rope on half of each head."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1.5625e-7)
    rope = read_head_rope(config, interleaved=True)
    attention = read_attention(config, rope=rope, qkv_bias=config.flag("attention_bias", True))
    layers = [Layer(attention, read_mlp(config), norm)] * layer_count(config)
    return decoder(config, "glm", layers, norm)


FAMILY = Family(
    "glm",
    read,
    gguf_arch="chatglm",
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131_072,
    },
    safetensors={"ffn.gate_up": "mlp.gate_up_proj"},
    gguf={"ffn.gate_up": "ffn_up"},
)
