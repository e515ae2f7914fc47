"""StableLM: LayerNorm and rope on a quarter of each head; 2 12B has one norm of each head."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config)
    has_qk_norm = config.flag("qk_layernorm", config.flag("has_qk_norm", False))
    attention = read_attention(
        config,
        qkv_bias=config.flag("use_qkv_bias", config.flag("attention_bias", False)),
        qk_norm=replace(norm, bias=False) if has_qk_norm else None,
        qk_norm_by_head=has_qk_norm,
    )
    is_parallel = config.flag("use_parallel_residual", False)
    layer = Layer(attention, read_mlp(config), norm, style="parallel" if is_parallel else "pre")
    return decoder(config, "stablelm", [layer] * layer_count(config), norm)


FAMILY = Family(
    "stablelm",
    read,
    gguf_arch="stablelm",
    defaults={
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 4096,
    },
    safetensors={
        "mixer.q_norm": "self_attn.q_layernorm.norms.{row}",
        "mixer.k_norm": "self_attn.k_layernorm.norms.{row}",
    },
    gguf_keys={"use_parallel_residual": "use_parallel_residual"},
)
