"""ERNIE 4.5: Llama with adjacent rotary pairs."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import has_adjacent_pairs


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention, bias = read_attention_and_bias(config)
    layer = Layer(attention, read_mlp(config, bias=bias), norm)
    return decoder(config, "ernie4_5", [layer] * layer_count(config), norm)


def read_attention_and_bias(config: Config) -> tuple[Attention, bool]:
    """The attention of ERNIE 4.5, and whether all of its projections have a bias."""
    bias = config.flag("use_bias", config.flag("attention_bias", False))
    rope = read_head_rope(config, default_base=5e5, interleaved=has_adjacent_pairs(config))
    return read_attention(config, rope=rope, qkv_bias=bias, out_bias=bias), bias


FAMILY = Family(
    "ernie4_5",
    read,
    gguf_arch="ernie4_5",
    other_gguf_archs=("paddleocr",),
    defaults={
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
)
