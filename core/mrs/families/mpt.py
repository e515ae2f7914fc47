"""MPT: scores that fall with distance, and no biases at all."""

from __future__ import annotations

from typing import Any

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import Unsupported
from mrs.layers.attention.config import (
    read_alibi_attention,
    read_attention,
    read_heads,
    with_derived_sizes,
)
from mrs.layers.attention.spec import Attention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm
from mrs.layers.norm.spec import Norm

DEFAULTS: dict[str, Any] = {
    "vocab_size": 50_368,
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "max_seq_len": 2048,
    "tie_word_embeddings": True,
}
KEYS = {
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


def read(config: Config) -> ModelSpec:
    config = usual_config(config)
    norm = read_layer_norm(config, bias=False)
    mlp = read_mlp(config, activation="gelu", gated=False)
    layers = [Layer(read_mpt_attention(config), mlp, norm)] * layer_count(config)
    scale, positions = read_logit_scale(config), read_mpt_positions(config)
    return decoder(config, "mpt", layers, norm, logit_scale=scale, input=positions)


def usual_config(config: Config) -> Config:
    """The config under the usual keys, those of attention among them."""
    if not config.has("d_model"):  # from a GGUF file
        return config
    config.allow_only("expansion_ratio", 4)
    config.allow_only("no_bias", True)
    config.allow_only("norm_type", "low_precision_layernorm", "layernorm")
    inner = Config(config.mapping("attn_config"), config.where)
    inner.allow_only("attn_type", "multihead_attention")
    inner.require_off("prefix_lm", "rope")
    return with_derived_sizes(config.renamed(KEYS).changed(inner.values))


def read_mpt_attention(config: Config) -> Attention:
    """Attention with ALiBi, or else for a model with learned positions."""
    scale = config.positive_number("softmax_scale", read_heads(config)[2] ** -0.5)
    whole, clip = config.flag("qk_ln", False), config.optional_number("clip_qkv")
    if whole and clip:
        raise Unsupported("clip_qkv with qk_ln is not supported", where=config.where)
    changes: dict[str, Any] = {
        "clip": clip,
        "scale": scale,
        "qk_norm": Norm(1e-5, kind="layer") if whole else None,
        "qk_norm_whole": whole,
    }
    if not config.flag("alibi", True):
        return read_attention(config, rope=None, **changes)
    return read_alibi_attention(config, config.positive_number("alibi_bias_max", 8), **changes)


def read_mpt_positions(config: Config) -> FirstInput | None:
    """The table of learned positions of a model without ALiBi."""
    if config.flag("alibi", True) or not config.flag("learned_pos_emb", True):
        return None
    return FirstInput(positions=config.positive("max_position_embeddings"))


def read_logit_scale(config: Config) -> float:
    """A number, or the name of one."""
    if config.values.get("logit_scale") == "inv_sqrt_d_model":
        return float(config.positive("hidden_size") ** -0.5)
    return config.number("logit_scale", 1.0)


FAMILY = Family(
    "mpt",
    read,
    gguf_arch="mpt",
    defaults=DEFAULTS,
    safetensors={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.norm_f",
        "layer": "transformer.blocks.{layer}.",
        "mixer.norm": "norm_1",
        "mixer.qkv": "attn.Wqkv",
        "mixer.o": "attn.out_proj",
        "mixer.q_norm": "attn.q_ln",
        "mixer.k_norm": "attn.k_ln",
        "ffn.norm": "norm_2",
        "ffn.up": "ffn.up_proj",
        "ffn.down": "ffn.down_proj",
    },
    gguf_keys={
        "clip_qkv": "attention.clamp_kqv",
        "alibi_bias_max": "attention.max_alibi_bias",
    },
)
