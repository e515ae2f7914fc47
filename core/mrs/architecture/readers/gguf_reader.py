"""Convert the metadata of a GGUF file to a config under transformers' names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mrs.errors import NotReadable

#: config key -> GGUF key after the architecture's prefix. Families add theirs (`Family.gguf_keys`).
KEYS: dict[str, str] = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
    "rotary_dim": "rope.dimension_count",
    "vocab_size": "vocab_size",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}

_SCALING_KEYS: dict[str, str] = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
}


def architecture(metadata: Mapping[str, Any], where: str) -> str:
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise NotReadable("the metadata lacks 'general.architecture'", where=where)
    return arch


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    family_keys: Mapping[str, str],
    where: str,
) -> dict[str, Any]:
    """The config that a family reads; some of its values follow from tensor names and shapes."""
    prefix = f"{architecture(metadata, where)}."
    config = {
        key: metadata[prefix + name]
        for key, name in {**KEYS, **family_keys}.items()
        if prefix + name in metadata
    }
    if tensor_shapes.get("token_embd.weight"):
        config["vocab_size"] = tensor_shapes["token_embd.weight"][0]
    _head_sizes(config)
    config["tie_word_embeddings"] = "output.weight" not in tensor_shapes
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in tensor_shapes
    config["attention_bias"] = "blk.0.attn_q.bias" in tensor_shapes
    config["mlp_bias"] = "blk.0.ffn_up.bias" in tensor_shapes
    config["lm_head_bias"] = "output.bias" in tensor_shapes
    config["rope_scaling"] = _rope_scaling(metadata, prefix, tensor_shapes)
    return {key: value for key, value in config.items() if value is not None}


def _rope_scaling(
    metadata: Mapping[str, Any], prefix: str, tensor_names: Collection[str]
) -> dict[str, Any] | None:
    """The rope scaling; factors that are tensors of the file are left out."""
    kind = metadata.get(f"{prefix}rope.scaling.type", "none")
    if "rope_freqs.weight" in tensor_names:
        kind = "factors"
    elif "rope_factors_long.weight" in tensor_names:
        kind = "longrope"
    if kind == "none":
        return None
    values = {
        key: metadata[prefix + name]
        for key, name in _SCALING_KEYS.items()
        if prefix + name in metadata
    }
    return {"rope_type": kind, **values}


def _head_sizes(config: dict[str, Any]) -> None:
    """Fill in what every GGUF reader assumes if the file does not say it, for all families."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        config.setdefault("head_dim", hidden // heads)
        config.setdefault("num_key_value_heads", heads)
