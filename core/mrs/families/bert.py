"""BERT: an encoder with learned positions, whose norms come after each sum."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.first_input import FirstInput
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.encoder_names import GGUF_ENCODER, encoder_names, unused_of_encoder
from mrs.architecture.readers.classifier_reader import read_tanh_classifier
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_encoder_attention,
    read_layer_norm,
    read_mlp,
)
from mrs.errors import NotReadable

DEFAULTS = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def read(config: Config, family: str = "bert", first_position: int = 0) -> ModelSpec:
    """An encoder like BERT; the position of a text's first token is `first_position`."""
    config.allow_only("position_embedding_type", "absolute")
    config.require_off("is_decoder", "add_cross_attention")
    norm = read_layer_norm(config, default=1e-12)
    attention = read_encoder_attention(config, rope=None, qkv_bias=True, out_bias=True)
    mlp = read_mlp(config, activation=config.activation("gelu"), gated=False, bias=True)
    layer = Layer(attention, mlp, norm, style="post_sum")
    positions = config.positive("max_position_embeddings")
    if positions <= first_position:
        raise NotReadable(f"all {positions} positions are before the first", where=config.where)
    tables = FirstInput(norm, positions, first_position, config.integer("type_vocab_size"))
    tokens, layers = positions - first_position, [layer] * layer_count(config)
    return decoder(config, family, layers, None, input=tables, context_tokens=tokens)


FAMILY = Family(
    "bert",
    read,
    gguf_arch="bert",
    defaults=DEFAULTS,
    safetensors=encoder_names("bert"),
    gguf=GGUF_ENCODER,
    classifier=lambda config: read_tanh_classifier(config, "bert.pooler.dense", "classifier"),
    ignored=unused_of_encoder("bert"),
)
