"""DistilBERT: BERT without token types, with names of its own."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler import Dense
from mrs.architecture.pooler_config import NamedPooler, read_classifier
from mrs.config.config import Config
from mrs.families.bert import read as read_bert

#: Its spelling of config keys -> the usual one.
_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


def read(config: Config) -> ModelSpec:
    config.values.get("sinusoidal_pos_embds")  # the file has that table, too
    usual = config.without("intermediate_size").renamed(_KEYS)
    return read_bert(usual.changed({"type_vocab_size": 0, "layer_norm_eps": 1e-12}), "distilbert")


def _read_classifier(config: Config) -> NamedPooler:
    size = config.renamed(_KEYS).positive("hidden_size")
    hidden = Dense(size, size, activation="relu")
    return read_classifier(config, hidden, ("pre_classifier", "classifier"))


FAMILY = Family(
    "distilbert",
    read,
    defaults={
        "vocab_size": 30_522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
    },
    safetensors={
        "embedding": "distilbert.embeddings.word_embeddings",
        "positions": "distilbert.embeddings.position_embeddings",
        "input_norm": "distilbert.embeddings.LayerNorm",
        "layer": "distilbert.transformer.layer.{layer}.",
        "mixer.q": "attention.q_lin",
        "mixer.k": "attention.k_lin",
        "mixer.v": "attention.v_lin",
        "mixer.o": "attention.out_lin",
        "mixer.post_norm": "sa_layer_norm",
        "ffn.up": "ffn.lin1",
        "ffn.down": "ffn.lin2",
        "ffn.post_norm": "output_layer_norm",
    },
    classifier=_read_classifier,
    unread=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
