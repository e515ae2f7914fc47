"""DeepSeek V3.2: V3, in which an indexer chooses the tokens that are attended to."""

from __future__ import annotations

from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families import deepseek_v3
from mrs.families.deepseek_v2 import GGUF_KEYS, read_deepseek
from mrs.layers.latent_attention.config import read_indexed_attention
from mrs.layers.mlp.spec import STACKED_EXPERTS


def read(config: Config) -> ModelSpec:
    attention = read_indexed_attention(config, interleaved=False)
    return read_deepseek(config, "deepseek_v32", [attention] * layer_count(config))


DEFAULTS = {
    **deepseek_v3.FAMILY.defaults,
    "num_hidden_layers": 61,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
}
NAMES = {
    **deepseek_v3.FAMILY.safetensors,
    **STACKED_EXPERTS,
    "mixer.index_q": "self_attn.indexer.wq_b",
    "mixer.index_k": "self_attn.indexer.wk",
    "mixer.index_norm": "self_attn.indexer.k_norm",
    "mixer.index_weights": "self_attn.indexer.weights_proj",
}
GGUF_NAMES = {
    "mixer.index_q": "indexer.attn_q_b",
    "mixer.index_k": "indexer.attn_k",
    "mixer.index_norm": "indexer.k_norm",
    "mixer.index_weights": "indexer.proj",
}
INDEXER_GGUF_KEYS = {
    **GGUF_KEYS,
    "index_topk": "attention.indexer.top_k",
    "index_head_dim": "attention.indexer.key_length",
    "index_n_heads": "attention.indexer.head_count",
}

FAMILY = Family(
    "deepseek_v32",
    read,
    gguf_arch="deepseek32",
    defaults=DEFAULTS,
    safetensors=NAMES,
    gguf=GGUF_NAMES,
    gguf_keys=INDEXER_GGUF_KEYS,
    head=NEXTN,
    ignored=("model.layers.{layers}.", "blk.{layers}."),
)
