"""LFM 3: LFM 2 with sandwich norms, gates of attention, and windows in half of its attention."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import numbered_mlp_names
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_norm, stack_layers
from mrs.architecture.readers.three_mixers_reader import read_three_mixers


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config, "norm_eps", 1e-5), Mlp(config.positive("intermediate_size"))
    style = "sandwich" if config.flag("use_sandwich_norm", True) else "pre"
    mixers = read_three_mixers(config, norm)
    layers = stack_layers(mixers, [mlp] * layer_count(config), norm, style=style)
    return decoder(config, "lfm3", layers, norm)


FAMILY = Family(
    "lfm3",
    read,
    defaults={
        "vocab_size": 128_000,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 128_000,
        "tie_word_embeddings": True,
        "conv_L_cache": 7,
        "sliding_window": 256,
    },
    safetensors={
        "norm": "model.embedding_norm",
        "mixer.norm": "operator_norm",
        "mixer.post_norm": "post_operator_norm",
        "ffn.norm": "ffn_norm",
        "ffn.post_norm": "post_ffn_norm",
        **numbered_mlp_names("ffn", "feed_forward"),
    },
)
