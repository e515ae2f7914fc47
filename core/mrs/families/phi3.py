"""Phi 3, 3.5 and 4: Llama with longrope, and fused tensors for q, k, v and for gate, up."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention = read_attention(config, window=read_window(config))
    layer = Layer(attention, read_mlp(config), norm)
    return decoder(config, "phi3", [layer] * layer_count(config), norm)


FAMILY = Family(
    "phi3",
    read,
    gguf_arch="phi3",
    aliases=("phi3_v",),
    ignored=("model.vision_embed_tokens.",),
    defaults={"original_max_position_embeddings": 4096, "max_position_embeddings": 4096},
    safetensors={"mixer.qkv": "self_attn.qkv_proj", "ffn.gate_up": "mlp.gate_up_proj"},
    gguf={"mixer.qkv": "attn_qkv", "ffn.gate_up": "ffn_up"},
)
