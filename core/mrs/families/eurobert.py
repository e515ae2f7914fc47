"""EuroBERT: Llama that attends both ways."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler import Dense, PoolingKind
from mrs.architecture.pooler_config import NamedPooler, read_classifier
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_biases, read_encoder_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm

#: Where the classifier pools; `late` is the mean of what its first layer makes of all states.
_POOLING: dict[str, PoolingKind] = {"bos": "cls", "mean": "mean", "late": "mean"}


def read(config: Config) -> ModelSpec:
    norm, mixer = read_norm(config, default=1e-5), read_encoder_attention
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    layer = Layer(mixer(config, **read_biases(config)), mlp, norm)
    return decoder(config, "eurobert", [layer] * layer_count(config), norm)


def _read_classifier(config: Config) -> NamedPooler:
    config.allow_only("classifier_pooling", *_POOLING)
    kind, size = config.text("classifier_pooling", "late"), config.positive("hidden_size")
    hidden = Dense(size, size, activation="gelu")
    found = read_classifier(config, hidden, ("dense", "classifier"), _POOLING[kind])
    return found._replace(pooler=replace(found.pooler, states_dense=int(kind == "late")))


FAMILY = Family(
    "eurobert",
    read,
    gguf_arch="eurobert",
    defaults={
        "vocab_size": 128_256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
    },
    classifier=_read_classifier,
)
