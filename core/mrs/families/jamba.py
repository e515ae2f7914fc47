"""Jamba: Mamba in most layers, attention without rope in some, and experts in every second one."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import attention_layers, layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.mamba.config import MAMBA_GGUF_KEYS, read_mamba
from mrs.layers.mamba.spec import GGUF_MAMBA, mamba_names
from mrs.layers.mamba2.spec import HYBRID_LAYERS
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import mlp_names
from mrs.layers.moe.config import expert_count, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def periodic_layers(config: Config, kind: str, period: int, offset: int) -> list[bool]:
    """Whether each layer has the index `offset` in a period; the keys begin with `kind`."""
    period = config.positive(f"{kind}_period", period)
    offset = config.integer(f"{kind}_offset", offset)
    return [layer % period == offset for layer in range(layer_count(config))]


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config)
    mamba = read_mamba(config, norm=norm)
    attention = read_attention(config, rope=None)
    has_attention = attention_layers(config) or periodic_layers(config, "attn_layer", 8, 4)
    mixers = [attention if attends else mamba for attends in has_attention]
    has_experts = periodic_layers(config, "expert_layer", 2, 1)
    moe = Moe(read_router(config, norm_topk_prob=False), mlp) if expert_count(config) > 1 else mlp
    layers = stack_layers(mixers, [moe if routes else mlp for routes in has_experts], norm)
    return decoder(config, "jamba", layers, norm)


FAMILY = Family(
    "jamba",
    read,
    gguf_arch="jamba",
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 262_144,
        "num_experts": 16,
    },
    safetensors={
        **HYBRID_LAYERS,
        **mamba_names("mamba"),
        **mlp_names("ffn.experts.{expert}", "feed_forward.experts.{expert}"),
        "ffn.router": "feed_forward.router",
    },
    gguf=GGUF_MAMBA,
    gguf_keys=MAMBA_GGUF_KEYS,
)
