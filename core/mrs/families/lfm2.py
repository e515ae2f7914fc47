"""LFM 2: short convolutions in most layers, attention in some."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, attention_layers, layer_count, listed_layers
from mrs.layers.attention.config import read_attention
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.mlp.spec import Mlp, numbered_mlp_names
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.short_convolution.config import CONVOLUTION, CONVOLUTION_GGUF_KEYS, read_convolution


def read_convolution_mixers(config: Config, norm: Norm) -> list[Mixer]:
    """The mixer of each layer. Attention is in the layers that are listed, or else in all."""
    convolution, attention = read_convolution(config), read_attention(config, qk_norm=norm)
    has_attention = attention_layers(config, FULL, CONVOLUTION)
    if has_attention is None:
        everywhere = range(layer_count(config))
        has_attention = listed_layers(config, "full_attn_idxs", everywhere)
    return [attention if each else convolution for each in has_attention]


def read(config: Config) -> ModelSpec:
    return read_lfm2(config, "lfm2", [read_adjusted_mlp(config)] * layer_count(config))


def read_lfm2(config: Config, family: str, feed_forward: Sequence[FeedForward]) -> ModelSpec:
    """Layers with these feed-forward networks."""
    config.allow_only("sliding_window", 0)
    norm = read_norm(config, "norm_eps", default=1e-5)
    tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
    layers = stack_layers(read_convolution_mixers(config, norm), feed_forward, norm)
    return decoder(config, family, layers, norm, tied_head=tied)


def read_adjusted_mlp(config: Config) -> Mlp:
    """An MLP of the stated size, or of two thirds of it, times a factor, in whole multiples."""
    size = config.positive("block_ff_dim", config.integer("intermediate_size", 0))
    if not config.flag("block_auto_adjust_ff_dim", False):
        return Mlp(size)
    size = int(2 * size / 3)
    if config.has("block_ffn_dim_multiplier"):
        size = int(config.positive_number("block_ffn_dim_multiplier") * size)
        multiple = config.positive("block_multiple_of", 256)
        size = -(-size // multiple) * multiple
    return Mlp(size)


NAMES = {
    "norm": "model.embedding_norm",
    "mixer.norm": "operator_norm",
    "mixer.o": "self_attn.out_proj",
    "mixer.q_norm": "self_attn.q_layernorm",
    "mixer.k_norm": "self_attn.k_layernorm",
    "ffn.norm": "ffn_norm",
    **numbered_mlp_names("ffn", "feed_forward"),
}

GGUF_NAMES = {"norm": "token_embd_norm"}

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
    gguf_keys=CONVOLUTION_GGUF_KEYS,
)
