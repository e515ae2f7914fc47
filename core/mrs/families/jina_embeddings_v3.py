"""Jina Embeddings v3: XLM-RoBERTa with rope in place of learned positions.

transformers has a model without the adapters for tasks, which Jina's own files add to each matrix.
"""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler_config import read_tanh_classifier
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.bert import GGUF_ENCODER, unread_of_encoder
from mrs.layers.attention.config import read_encoder_attention, read_head_rope
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm, rope = read_layer_norm(config), read_head_rope(config, default_base=20_000.0)
    mixer = read_encoder_attention(config, rope=rope, qkv_bias=True, out_bias=True)
    mlp = read_mlp(config, activation=config.activation("gelu"), gated=False, bias=True)
    layers = [Layer(mixer, mlp, norm, style="post_sum")] * layer_count(config)
    tables = FirstInput(norm, token_types=config.integer("type_vocab_size"))
    return decoder(config, "jina_embeddings_v3", layers, None, input=tables)


FAMILY = Family(
    "jina_embeddings_v3",
    read,
    gguf_arch="jina-bert-v3",
    defaults={
        "vocab_size": 250_002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
    },
    safetensors={
        "embedding": "roberta.embeddings.word_embeddings",
        "token_types": "roberta.embeddings.token_type_embeddings",
        "input_norm": "roberta.emb_ln",
        "layer": "roberta.encoder.layers.{layer}.",
        "mixer.qkv": "mixer.Wqkv",
        "mixer.o": "mixer.out_proj",
        "mixer.post_norm": "norm1",
        "ffn.up": "mlp.fc1",
        "ffn.down": "mlp.fc2",
        "ffn.post_norm": "norm2",
    },
    gguf=GGUF_ENCODER,
    classifier=lambda config: read_tanh_classifier(
        config, "classifier.dense", "classifier.out_proj"
    ),
    unread=("lm_head.", *unread_of_encoder("roberta")),
)
