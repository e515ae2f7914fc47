"""Read multi-head latent attention (MLA) from its usual config keys."""

from __future__ import annotations

import math

from mrs.architecture.config import Config
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.norm_rope import Norm, Rope
from mrs.architecture.readers.rope_reader import read_query_scale, read_rope
from mrs.errors import NotReadable


def read_latent_attention(config: Config) -> LatentAttention:
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
        rope=rope,
        norm=Norm(1e-6),
        bias=config.flag("attention_bias", False),
        query_scale=read_query_scale(config),
    )


def _yarn_scale(rope: Rope) -> float:
    """The square of DeepSeek's `mscale`, by which YaRN multiplies all scores; 1 without scaling."""
    if rope.scaling is None:
        return 1.0
    weight = rope.scaling.get("mscale_all_dim", 10 * rope.scaling.get("yarn_log_multiplier", 0))
    factor = rope.scaling.get("factor", 1.0)
    return (0.1 * weight * math.log(factor) + 1) ** 2 if factor > 1 else 1.0
