"""CWM (Code World Model): Llama with sliding windows in three of four layers."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import with_default_rope


def read(config: Config) -> ModelSpec:
    config = with_default_rope(config, DEFAULT_ROPE)
    norm, mlp = read_norm(config), read_mlp(config, bias=config.flag("mlp_bias", False))
    rope = read_head_rope(config, default_base=1e6)
    layers = [
        Layer(read_attention(config, rope=rope, window=window), mlp, norm)
        for window in windows(config, period=4, full_first=True)
    ]
    return decoder(config, "cwm", layers, norm)


DEFAULT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}

FAMILY = Family(
    "cwm",
    read,
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "sliding_window": 8192,
        "max_position_embeddings": 131_072,
    },
)
