"""Read short convolutions, and the attention that some layers have in their place."""

from __future__ import annotations

from mrs.config.config import Config
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
