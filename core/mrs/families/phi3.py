"""Phi 3, 3.5 and 4: Llama with longrope, and fused tensors for q, k, v and for gate, up."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count, read_window
from mrs.architecture.readers.layer_reader import decoder, read_attention, read_mlp, read_norm


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
