"""BLOOM: scores that fall with distance, a norm of the embeddings, and biases everywhere."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.gpt2_keys import GPT2_KEYS
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_alibi_attention, with_derived_sizes
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm

_KEYS = {**GPT2_KEYS, "n_embed": "hidden_size", "seq_length": "max_position_embeddings"}


def read(config: Config) -> ModelSpec:
    config.require_off("apply_residual_connection_post_layernorm")
    config = with_derived_sizes(config.renamed(_KEYS))
    norm = read_layer_norm(config)
    attention = read_alibi_attention(config, qkv_bias=True, out_bias=True)
    mlp = read_mlp(config, activation="gelu_tanh", gated=False, bias=True)
    layers = [Layer(attention, mlp, norm)] * layer_count(config)
    return decoder(config, "bloom", layers, norm, input=FirstInput(norm))


FAMILY = Family(
    "bloom",
    read,
    gguf_arch="bloom",
    defaults={
        "vocab_size": 250_880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "tie_word_embeddings": True,
    },
    safetensors={
        "embedding": "transformer.word_embeddings",
        "input_norm": "transformer.word_embeddings_layernorm",
        "norm": "transformer.ln_f",
        "layer": "transformer.h.{layer}.",
        "mixer.qkv_by_head": "self_attention.query_key_value",
        "mixer.o": "self_attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
    },
)
