"""BERT: an encoder with learned positions, whose norms come after each sum."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.encoder_input import EncoderInput
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_encoder_attention,
    read_layer_norm,
    read_mlp,
)
from mrs.architecture.readers.readout_reader import read_tanh_classifier
from mrs.errors import NotReadable

NAMES = {
    "embedding": "bert.embeddings.word_embeddings",
    "positions": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "input_norm": "bert.embeddings.LayerNorm",
    "layer": "bert.encoder.layer.{layer}.",
    "mixer.q": "attention.self.query",
    "mixer.k": "attention.self.key",
    "mixer.v": "attention.self.value",
    "mixer.o": "attention.output.dense",
    "mixer.post_norm": "attention.output.LayerNorm",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
    "ffn.post_norm": "output.LayerNorm",
}
#: Modules for training, and the pooler, which only classifiers use.
IGNORED = ("pooler.", "cls.", "embeddings.position_ids")
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
    for key, supported in _SUPPORTED.items():
        config.allow_only(key, supported)
    norm = read_layer_norm(config, default=1e-12)
    attention = read_encoder_attention(config, rope=None, qkv_bias=True, out_bias=True)
    mlp = read_mlp(config, activation=config.activation("gelu"), gated=False, bias=True)
    layer = Layer(attention, mlp, norm, style="post_sum")
    positions = config.positive("max_position_embeddings")
    if positions <= first_position:
        raise NotReadable(f"all {positions} positions are before the first", where=config.where)
    tables = EncoderInput(norm, positions, first_position, config.integer("type_vocab_size"))
    tokens, layers = positions - first_position, [layer] * layer_count(config)
    return decoder(config, family, layers, None, input=tables, context_tokens=tokens)


_SUPPORTED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

GGUF_NAMES = {
    "positions": "position_embd",
    "token_types": "token_types",
    "input_norm": "token_embd_norm",
    "mixer.post_norm": "attn_output_norm",
    "ffn.post_norm": "layer_output_norm",
}
GGUF_KEYS = {"type_vocab_size": "tokenizer.ggml.token_type_count"}

FAMILY = Family(
    "bert",
    read,
    gguf_arch="bert",
    defaults=DEFAULTS,
    safetensors=NAMES,
    gguf=GGUF_NAMES,
    gguf_keys=GGUF_KEYS,
    classifier=lambda config: read_tanh_classifier(config, "bert.pooler.dense", "classifier"),
    ignored=(*IGNORED, *(f"bert.{name}" for name in IGNORED)),
)
