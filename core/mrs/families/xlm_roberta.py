"""RoBERTa and XLM-RoBERTa: BERT, whose positions begin after that of the padding token."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.readout_reader import read_tanh_classifier
from mrs.families.bert import DEFAULTS, IGNORED, NAMES
from mrs.families.bert import read as read_bert


def read(config: Config) -> ModelSpec:
    first_position = config.integer("pad_token_id", 1) + 1
    return read_bert(config, "xlm_roberta", first_position)


_NAMES = {slot: name.replace("bert.", "roberta.") for slot, name in NAMES.items()}
_IGNORED = ("lm_head.", *IGNORED)

FAMILY = Family(
    "xlm_roberta",
    read,
    aliases=("xlm-roberta", "roberta", "camembert"),
    defaults=DEFAULTS,
    safetensors=_NAMES,
    classifier=lambda config: read_tanh_classifier(
        config, "classifier.dense", "classifier.out_proj"
    ),
    ignored=(*_IGNORED, *(f"roberta.{name}" for name in IGNORED)),
)
