"""InternLM 3: Llama whose biases the published files name otherwise."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, bias = (
        read_norm(config, default=1e-5),
        config.flag(config.spelling("bias", "mlp_bias"), False),
    )
    qkv_bias = config.flag(config.spelling("qkv_bias", "attention_bias"), False)
    attention = read_attention(config, qkv_bias=qkv_bias, out_bias=bias)
    layer = Layer(attention, read_mlp(config, bias=bias), norm)
    return decoder(config, "internlm3", [layer] * layer_count(config), norm)


FAMILY = Family(
    "internlm3",
    read,
    gguf_rope_interleaved=True,
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
)
