"""MPNet: BERT without token types, and with a bias of scores by distance that all layers share."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler_config import read_tanh_classifier
from mrs.config.config import Config
from mrs.families.bert import DEFAULTS, encoder_names, unread_of_encoder
from mrs.families.bert import read as read_bert
from mrs.layers.attention.config import attention_fields
from mrs.layers.relative_attention.spec import BiasedAttention

#: The row of the first position, and the buckets that any of its files has.
_FIRST_POSITION, _BUCKETS = 2, 32


def read(config: Config) -> ModelSpec:
    config.allow_only("relative_attention_num_buckets", _BUCKETS)
    fields = attention_fields(config, rope=None, qkv_bias=True, out_bias=True)
    mixer = BiasedAttention(**fields, buckets=_BUCKETS)
    return read_bert(config, "mpnet", _FIRST_POSITION, mixer)


FAMILY = Family(
    "mpnet",
    read,
    defaults={**DEFAULTS, "vocab_size": 30_527, "type_vocab_size": 0},
    safetensors={
        **encoder_names("mpnet"),
        "distances": "mpnet.encoder.relative_attention_bias",
        "mixer.q": "attention.attn.q",
        "mixer.k": "attention.attn.k",
        "mixer.v": "attention.attn.v",
        "mixer.o": "attention.attn.o",
        "mixer.post_norm": "attention.LayerNorm",
    },
    classifier=lambda config: read_tanh_classifier(
        config, "classifier.dense", "classifier.out_proj"
    ),
    unread=("lm_head.", *unread_of_encoder("mpnet")),
)
