"""Read short convolutions, and the attention that some layers have in their place."""

from __future__ import annotations

from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, attention_layers, layer_count, listed_layers
from mrs.layers.attention.config import read_attention
from mrs.layers.mixer import Mixer
from mrs.layers.norm.spec import Norm
from mrs.layers.short_convolution.spec import ShortConvolution

#: What lists of layers call convolutions.
CONVOLUTION = "conv"
#: Config key -> metadata key of GGUF files.
CONVOLUTION_GGUF_KEYS = {
    "conv_L_cache": "shortconv.l_cache",
    "norm_eps": "attention.layer_norm_rms_epsilon",
}


def read_convolution(config: Config) -> ShortConvolution:
    return ShortConvolution(
        channels=config.positive("hidden_size"),
        kernel_tokens=config.positive("conv_L_cache", 3),
        bias=config.flag("conv_bias", False),
    )


def read_convolution_mixers(config: Config, norm: Norm) -> list[Mixer]:
    """The mixer of each layer. Attention is in the layers that are listed, or else in all."""
    convolution, attention = read_convolution(config), read_attention(config, qk_norm=norm)
    has_attention = attention_layers(config, FULL, CONVOLUTION)
    if has_attention is None:
        everywhere = range(layer_count(config))
        has_attention = listed_layers(config, "full_attn_idxs", everywhere)
    return [attention if each else convolution for each in has_attention]
