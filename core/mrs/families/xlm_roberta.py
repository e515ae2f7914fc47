"""RoBERTa and XLM-RoBERTa: BERT, whose positions begin after that of the padding token."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.readout_reader import NamedReadout, class_count
from mrs.architecture.readout import Dense, Readout
from mrs.families.bert import DEFAULTS, IGNORED, NAMES
from mrs.families.bert import read as read_bert


def read(config: Config) -> ModelSpec:
    first_position = config.integer("pad_token_id", 1) + 1
    return read_bert(config, "xlm_roberta", first_position)


def classifier(config: Config) -> NamedReadout:
    """A dense layer on the first token, and the classes."""
    size = config.positive("hidden_size")
    dense = Dense(size, size, activation="tanh"), Dense(class_count(config), size)
    names = {"dense.0": "classifier.dense", "dense.1": "classifier.out_proj"}
    return NamedReadout(Readout("cls", dense, normalize=False, is_score=True), names)


_NAMES = {slot: name.replace("bert.", "roberta.") for slot, name in NAMES.items()}
_IGNORED = ("lm_head.", *IGNORED)

FAMILY = Family(
    "xlm_roberta",
    read,
    aliases=("xlm-roberta", "roberta", "camembert"),
    defaults=DEFAULTS,
    safetensors=_NAMES,
    classifier=classifier,
    ignored=(*_IGNORED, *(f"roberta.{name}" for name in IGNORED)),
)
