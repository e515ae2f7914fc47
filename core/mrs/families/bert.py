"""BERT: an encoder with learned positions, whose norms come after each sum."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler_config import read_tanh_classifier
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.config import read_encoder_attention
from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm

#: Modules for training, and the pooler, which only classifiers use.
UNREAD_OF_ENCODERS = ("pooler.", "cls.", "embeddings.position_ids")

GGUF_ENCODER: Mapping[str, str] = {
    "token_types": "token_types",
    "mixer.post_norm": "attn_output_norm",
    "ffn.post_norm": "layer_output_norm",
}


def encoder_names(model: str) -> Mapping[str, str]:
    """The names in a file that calls the encoder `model`."""
    return {
        "embedding": f"{model}.embeddings.word_embeddings",
        "positions": f"{model}.embeddings.position_embeddings",
        "token_types": f"{model}.embeddings.token_type_embeddings",
        "input_norm": f"{model}.embeddings.LayerNorm",
        "layer": f"{model}.encoder.layer.{{layer}}.",
        "mixer.q": "attention.self.query",
        "mixer.k": "attention.self.key",
        "mixer.v": "attention.self.value",
        "mixer.o": "attention.output.dense",
        "mixer.post_norm": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "ffn.post_norm": "output.LayerNorm",
    }


def unread_of_encoder(model: str) -> tuple[str, ...]:
    """Prefixes of the names of tensors that no layer reads, alone or in such a file."""
    return (*UNREAD_OF_ENCODERS, *(f"{model}.{name}" for name in UNREAD_OF_ENCODERS))


DEFAULTS = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def read(
    config: Config,
    family: str = "bert",
    first_position: int = 0,
    mixer: EncoderAttention | None = None,
) -> ModelSpec:
    """An encoder like BERT; the position of a text's first token is `first_position`.

    With a `mixer` layers have another attention.
    """
    config.allow_only("position_embedding_type", "absolute")
    config.require_off("is_decoder", "add_cross_attention")
    norm = read_layer_norm(config, default=1e-12)
    plain = read_encoder_attention(config, rope=None, qkv_bias=True, out_bias=True)
    mlp = read_mlp(config, activation=config.activation("gelu"), gated=False, bias=True)
    layer = Layer(mixer or plain, mlp, norm, style="post_sum")
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
    unread=unread_of_encoder("bert"),
)
