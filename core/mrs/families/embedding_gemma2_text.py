"""EmbeddingGemma 2, text: Gemma 4's layers that attend both ways, and a last map of all states.

The inputs of the layers follow from the embeddings alone.
"""

from __future__ import annotations

from dataclasses import fields

from mrs.architecture.decoder_config import per_layer_decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler import Dense, Pooler
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, layer_count
from mrs.families.gemma4_text import read_wide_heads
from mrs.layers.attention.spec import Attention, EncoderAttention
from mrs.layers.mlp.config import read_gelu, read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import with_default_rope

_DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "default", "rope_theta": 1e6},
}
#: Heads of layers with full attention in the published sizes.
_WIDE = {"head_dim": 512, "num_key_value_heads": 1}


def read(config: Config) -> ModelSpec:
    config = with_default_rope(config, _DEFAULT_ROPE)
    if not config.mapping("per_layer_config"):
        config = config.changed({"per_layer_config": {"wide": _WIDE}})
    mixers = [_both_ways(each) for each in read_wide_heads(config)]
    mlps = [read_mlp(config, activation=read_gelu(config))] * layer_count(config)
    family, norm = "embedding_gemma2_text", read_norm(config)
    return per_layer_decoder(config, family, mixers, mlps, norm, has_table=False, output_scale=True)


def _both_ways(attention: Attention) -> EncoderAttention:
    """The same for an encoder; the window is as many tokens on either side."""
    settings = {each.name: getattr(attention, each.name) for each in fields(attention)}
    window = None if attention.window is None else attention.window + 1
    return EncoderAttention(**{**settings, "always_causal": False, "window": window})


def _read_states(config: Config) -> Pooler:
    last = Dense(config.positive("embedding_dim"), config.positive("hidden_size"), bias=False)
    return Pooler(dense=(last,), states_dense=1)


FAMILY = Family(
    "embedding_gemma2_text",
    read,
    aliases=("embedding_gemma2",),
    defaults={
        "vocab_size": 262_144,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 262_144,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 512,
        "embedding_dim": 768,
    },
    safetensors={
        "dense.0": "model.embedding_projection",
        "layer_inputs.projection": "model.ple.per_layer_model_projection",
        "layer_inputs.norm": "model.ple.per_layer_projection_norm",
        "ffn.norm": "pre_feedforward_layernorm",
        "input.gate": "ple_block.per_layer_input_gate",
        "input.projection": "ple_block.per_layer_projection",
        "input.norm": "ple_block.post_per_layer_input_norm",
    },
    states=_read_states,
)
