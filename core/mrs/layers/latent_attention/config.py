"""Read multi-head latent attention (MLA) from its usual config keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.config import read_query_scale, read_rope
from mrs.layers.rope.spec import Rope, RopeScaling

if TYPE_CHECKING:
    from mrs.layers.latent_attention.spec import IndexedAttention


#: Config key -> metadata key of GGUF files.
MLA_GGUF_KEYS = {
    "qk_rope_head_dim": "rope.dimension_count",
    "qk_head_dim": "attention.key_length_mla",
    "v_head_dim": "attention.value_length_mla",
    "value_length": "attention.value_length",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
}
MLA_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
#: No pair rotates.
_STILL = RopeScaling("proportional", (("rotated_pairs", 0),))


def read_latent_attention(config: Config, *, rotates: bool = True) -> LatentAttention:
    """MLA; without rope, but with the values that it would rotate, unless it `rotates`."""
    heads, rope_dim = config.positive("num_attention_heads"), config.positive("qk_rope_head_dim")
    # Newer GGUF files have another key for a head's size, and the latent vector's under this one.
    qk_head_dim = config.integer("qk_head_dim", config.integer("head_dim", 0))
    qk_nope_head_dim = config.integer("qk_nope_head_dim", qk_head_dim - rope_dim)
    if not qk_nope_head_dim:
        raise NotReadable("qk_nope_head_dim is 0", where=config.where)
    rope = read_rope(config, rope_dim, interleaved=config.flag("rope_interleave", True), whole=True)
    return LatentAttention(
        heads,
        qk_nope_head_dim,
        config.positive("v_head_dim", config.integer("value_length", 0)),
        config.positive("kv_lora_rank"),
        config.positive("q_lora_rank") if config.has("q_lora_rank") else None,
        scale=(qk_nope_head_dim + rope_dim) ** -0.5 * _yarn_scale(rope),
        rope=rope if rotates else replace(rope, scaling=_STILL),
        norm=Norm(1e-6),
        bias=config.flag("attention_bias", False),
        query_scale=read_query_scale(config),
    )


def read_indexed_attention(config: Config, *, interleaved: bool) -> IndexedAttention:
    """MLA to the tokens that an indexer chooses, whose rope may be `interleaved`."""
    from mrs.layers.latent_attention.spec import IndexedAttention, Indexer

    attention = read_latent_attention(config)
    if attention.q_lora_rank is None:
        raise Unsupported("an indexer without q_lora_rank is not supported", where=config.where)
    indexer = Indexer(
        config.positive("index_n_heads"),
        config.positive("index_head_dim"),
        config.positive("index_topk"),
        interleaved,
        Norm(1e-6, kind="layer", bias=True),
    )
    if indexer.head_dim < attention.rope.dim:
        raise NotReadable(
            f"index_head_dim = {indexer.head_dim} is less than qk_rope_head_dim", where=config.where
        )
    return IndexedAttention(**vars(attention), indexer=indexer)


def _yarn_scale(rope: Rope) -> float:
    """The square of DeepSeek's `mscale`, by which YaRN multiplies all scores; 1 without scaling."""
    if rope.scaling is None:
        return 1.0
    weight = rope.scaling.get("mscale_all_dim", 10 * rope.scaling.get("yarn_log_multiplier", 0))
    factor = rope.scaling.get("factor", 1.0)
    return (0.1 * weight * math.log(factor) + 1) ** 2 if factor > 1 else 1.0
