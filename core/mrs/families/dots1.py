"""dots.llm1: Qwen 3 attention with DeepSeek V3's experts."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import biased_attention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    feed_forward = mixed_layers(config, read_grouped_moe(config), read_mlp(config))
    mixers = [biased_attention(config, qk_norm=norm, window=window) for window in windows(config)]
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, "dots1", layers, norm)


FAMILY = Family(
    "dots1",
    read,
    gguf_arch="dots1",
    defaults={
        "num_key_value_heads": 32,
        "scoring_func": "sigmoid",
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
    safetensors=SHARED_EXPERTS,
    gguf_keys=GROUPED_MOE_GGUF_KEYS,
)
