"""ELECTRA: BERT, whose embeddings may be narrower than its layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler import Dense
from mrs.architecture.pooler_config import NamedPooler, read_classifier
from mrs.config.config import Config
from mrs.families.bert import DEFAULTS, encoder_names, unread_of_encoder
from mrs.families.bert import read as read_bert
from mrs.layers.first_input.spec import FirstInput


def read(config: Config) -> ModelSpec:
    spec, width = read_bert(config, "electra"), config.positive("embedding_size")
    assert isinstance(spec.input, FirstInput)
    if width == spec.hidden_size:
        return spec
    return replace(spec, input=replace(spec.input, width=width))


def _read_classifier(config: Config) -> NamedPooler:
    size = config.positive("hidden_size")
    hidden = Dense(size, size, activation="gelu")
    return read_classifier(config, hidden, ("classifier.dense", "classifier.out_proj"))


FAMILY = Family(
    "electra",
    read,
    defaults={
        **DEFAULTS,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    safetensors={**encoder_names("electra"), "input_map": "electra.embeddings_project"},
    classifier=_read_classifier,
    unread=(
        "generator_predictions.",
        "generator_lm_head.",
        "discriminator_predictions.",
        *unread_of_encoder("electra"),
    ),
)
