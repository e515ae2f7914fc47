"""LFM 2: short convolutions in most layers, attention in some."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.short_convolution_spec import ShortConvolution
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_attention,
    read_norm,
)


def read(config: Config) -> ModelSpec:
    mixers, norm = read_mixers(config)
    mlp = Mlp(_intermediate_size(config))
    layers = [Layer(mixer, mlp, norm) for mixer in mixers]
    tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
    return decoder(config, "lfm2", layers, norm, tied_head=tied)


def read_mixers(config: Config) -> tuple[list[Mixer], Norm]:
    """The token mixer of each layer, and the norm."""
    norm = read_norm(config, "norm_eps", default=1e-5)
    convolution = ShortConvolution(
        channels=config.positive("hidden_size"),
        kernel_tokens=config.positive("conv_L_cache", 3),
        bias=config.flag("conv_bias", False),
    )
    attention = read_attention(config, qk_norm=norm)
    return [attention if each else convolution for each in _attention_layers(config)], norm


def _attention_layers(config: Config) -> list[bool]:
    """Whether each layer is an attention layer; in GGUF files the others have no heads."""
    if config.has("num_key_value_heads_by_layer"):
        return [heads > 0 for heads in config.sequence("num_key_value_heads_by_layer")]
    if config.has("layer_types"):
        return [t != "conv" for t in layer_types(config, "conv", "full_attention")]
    count = layer_count(config)
    indices = config.sequence("full_attn_idxs", range(count))
    return [layer in indices for layer in range(count)]


def _intermediate_size(config: Config) -> int:
    size = config.positive("block_ff_dim", config.integer("intermediate_size", 0))
    if not config.flag("block_auto_adjust_ff_dim", False):
        return size
    size = int(2 * size / 3)
    if config.has("block_ffn_dim_multiplier"):
        size = int(config.positive_number("block_ffn_dim_multiplier") * size)
        multiple = config.positive("block_multiple_of", 256)
        size = -(-size // multiple) * multiple
    return size


NAMES = {
    "norm": "model.embedding_norm",
    "mixer.norm": "operator_norm",
    "mixer.o": "self_attn.out_proj",
    "mixer.q_norm": "self_attn.q_layernorm",
    "mixer.k_norm": "self_attn.k_layernorm",
    "ffn.norm": "ffn_norm",
    "ffn.gate": "feed_forward.w1",
    "ffn.up": "feed_forward.w3",
    "ffn.down": "feed_forward.w2",
}
GGUF_NAMES = {"norm": "token_embd_norm"}
GGUF_KEYS = {
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "conv_L_cache": "shortconv.l_cache",
}

FAMILY = Family(
    "lfm2",
    read,
    gguf_arch="lfm2",
    defaults={
        "num_key_value_heads": 8,
        "intermediate_size": 12288,
        "rope_theta": 1e6,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
    },
    safetensors=NAMES,
    gguf=GGUF_NAMES,
    gguf_keys=GGUF_KEYS,
)
