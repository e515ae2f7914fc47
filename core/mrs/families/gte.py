"""GTE: BERT with rope in place of learned positions, and a gated MLP whose last matrix has a bias.

In its files the rows of the gate come after those that it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler_config import read_tanh_classifier
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.bert import DEFAULTS, unread_of_encoder
from mrs.layers.attention.config import read_encoder_attention, read_head_rope
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config, default=1e-12)
    rope = read_head_rope(config, default_base=160_000.0)
    mixer = read_encoder_attention(config, rope=rope, qkv_bias=True, out_bias=True)
    mlp = read_mlp(config, activation=config.activation("gelu"), down_bias=True)
    layers = [Layer(mixer, mlp, norm, style="post_sum")] * layer_count(config)
    tables = FirstInput(norm, token_types=config.integer("type_vocab_size"))
    return decoder(config, "gte", layers, None, input=tables)


def gte_family(name: str, read: Callable[[Config], ModelSpec]) -> Family:
    """The family of files that call the encoder `name`."""
    return Family(
        name,
        read,
        defaults={
            **DEFAULTS,
            "vocab_size": 250_048,
            "max_position_embeddings": 8192,
            "type_vocab_size": 1,
        },
        safetensors={
            "embedding": f"{name}.embeddings.word_embeddings",
            "token_types": f"{name}.embeddings.token_type_embeddings",
            "input_norm": f"{name}.embeddings.LayerNorm",
            "layer": f"{name}.encoder.layer.{{layer}}.",
            "mixer.qkv": "attention.qkv_proj",
            "mixer.o": "attention.o_proj",
            "mixer.post_norm": "attn_ln",
            "ffn.up_gate": "mlp.up_gate_proj",
            "ffn.down": "mlp.down_proj",
            "ffn.post_norm": "mlp_ln",
        },
        classifier=lambda config: read_tanh_classifier(
            config, f"{name}.pooler.dense", "classifier"
        ),
        unread=("lm_head.", *unread_of_encoder(name)),
    )


FAMILY = gte_family("gte", read)
