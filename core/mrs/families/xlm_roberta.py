"""RoBERTa and XLM-RoBERTa: BERT, whose positions begin after that of the padding token."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler_config import read_tanh_classifier
from mrs.config.config import Config
from mrs.families.bert import DEFAULTS, encoder_names, unread_of_encoder
from mrs.families.bert import read as read_bert


def read(config: Config) -> ModelSpec:
    first_position = config.integer("pad_token_id", 1) + 1
    return read_bert(config, "xlm_roberta", first_position)


FAMILY = Family(
    "xlm_roberta",
    read,
    aliases=("xlm-roberta", "roberta", "camembert"),
    defaults=DEFAULTS,
    safetensors=encoder_names("roberta"),
    classifier=lambda config: read_tanh_classifier(
        config, "classifier.dense", "classifier.out_proj"
    ),
    unread=("lm_head.", *unread_of_encoder("roberta")),
)
