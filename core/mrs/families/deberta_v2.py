"""DeBERTa v2 and v3: BERT, whose scores also depend on the distance of tokens (disentangled)."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler import Dense
from mrs.architecture.pooler_config import NamedPooler, read_classifier
from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.families.bert import DEFAULTS, encoder_names, unread_of_encoder
from mrs.families.bert import read as read_bert
from mrs.layers.attention.config import attention_fields
from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.norm.config import read_layer_norm
from mrs.layers.relative_attention.spec import DisentangledAttention

#: Addends of scores: of queries with positions, and of positions with keys.
_KEYS, _QUERIES = "c2p", "p2c"


def read(config: Config) -> ModelSpec:
    config.require_off("conv_kernel_size")
    config.allow_only("embedding_size", config.positive("hidden_size"))
    config = config.renamed({"attention_head_size": "head_dim"})
    spec = read_bert(config, "deberta_v2", mixer=_read_attention(config))
    if config.flag("position_biased_input", True):
        return spec
    assert isinstance(spec.input, FirstInput)
    return replace(spec, input=replace(spec.input, positions=0))


def _read_attention(config: Config) -> EncoderAttention:
    """Without relative positions only the scale is another than BERT's."""
    addends = _parts(config, "pos_att_type")
    fields = attention_fields(config, rope=None, qkv_bias=True, out_bias=True)
    count = 1 + (_KEYS in addends) + (_QUERIES in addends)
    fields["scale"] = (fields["head_dim"] * count) ** -0.5
    most = _above_zero(config, "max_relative_positions")
    most = most or config.positive("max_position_embeddings")
    buckets, norms = _above_zero(config, "position_buckets"), _parts(config, "norm_rel_ebd")
    if not config.flag("relative_attention", False) or count == 1:
        return EncoderAttention(**fields)
    if buckets and most <= buckets // 2 + 1:
        what = f"max_relative_positions = {most} with {buckets} buckets is not supported"
        raise Unsupported(what, where=config.where)
    return DisentangledAttention(
        **fields,
        span=buckets or most,
        buckets=buckets,
        most_distance=most,
        position_keys=_KEYS in addends,
        position_queries=_QUERIES in addends,
        own_maps=not config.flag("share_att_key", False),
        norm=read_layer_norm(config) if "layer_norm" in norms else None,
    )


def _parts(config: Config, key: str) -> list[str]:
    """The names in a list, or in a text between bars."""
    value = config.values.get(key) or []
    if isinstance(value, str):
        return [part.strip() for part in value.lower().split("|")]
    return [str(part) for part in config.sequence(key, ())]


def _above_zero(config: Config, key: str) -> int:
    """A size, or 0 if the config has none or -1."""
    return 0 if config.values.get(key) == -1 else config.integer(key, 0)


def _read_classifier(config: Config) -> NamedPooler:
    config.allow_only("pooler_hidden_act", "gelu")
    size = config.positive("hidden_size")
    config.allow_only("pooler_hidden_size", size)
    hidden = Dense(size, size, activation="gelu")
    return read_classifier(config, hidden, ("pooler.dense", "classifier"))


FAMILY = Family(
    "deberta_v2",
    read,
    aliases=("deberta-v2", "deberta-v3"),
    defaults={
        **DEFAULTS,
        "vocab_size": 128_100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    },
    safetensors={
        **encoder_names("deberta"),
        "distances": "deberta.encoder.rel_embeddings",
        "distances_norm": "deberta.encoder.LayerNorm",
        "mixer.q": "attention.self.query_proj",
        "mixer.k": "attention.self.key_proj",
        "mixer.v": "attention.self.value_proj",
        "mixer.position_k": "attention.self.pos_key_proj",
        "mixer.position_q": "attention.self.pos_query_proj",
    },
    classifier=_read_classifier,
    unread=("lm_predictions.", "mask_predictions.", *unread_of_encoder("deberta")),
)
