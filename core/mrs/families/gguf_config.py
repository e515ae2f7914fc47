"""Turn a GGUF file's metadata into a config under transformers' names."""

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
    "vocab_size": "vocab_size",
}

_SCALING_KEYS: dict[str, str] = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
}


def architecture(metadata: Mapping[str, Any], where: str) -> str:
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise NotReadable("the metadata names no general.architecture", where=where)
    return arch


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    family_keys: Mapping[str, str],
    where: str,
) -> dict[str, Any]:
    """The config that a family reads; what only the tensors tell is taken from their names."""
    prefix = f"{architecture(metadata, where)}."
    config = {
        key: metadata[prefix + name]
        for key, name in {**KEYS, **family_keys}.items()
        if prefix + name in metadata
    }
    if "token_embd.weight" in tensor_shapes:
        config["vocab_size"] = tensor_shapes["token_embd.weight"][0]
    config["tie_word_embeddings"] = "output.weight" not in tensor_shapes
    config["attention_bias"] = "blk.0.attn_q.bias" in tensor_shapes
    config["mlp_bias"] = "blk.0.ffn_up.bias" in tensor_shapes
    config["rope_scaling"] = _rope_scaling(metadata, prefix, tensor_shapes)
    _partial_rotary(config, metadata.get(f"{prefix}rope.dimension_count"))
    return {key: value for key, value in config.items() if value is not None}


def _rope_scaling(
    metadata: Mapping[str, Any], prefix: str, tensor_names: Collection[str]
) -> dict[str, Any] | None:
    if "rope_freqs.weight" in tensor_names:
        return {"rope_type": "factors"}
    kind = metadata.get(f"{prefix}rope.scaling.type", "none")
    if kind == "none":
        return None
    values = {
        key: metadata[prefix + name]
        for key, name in _SCALING_KEYS.items()
        if prefix + name in metadata
    }
    return {"rope_type": kind, **values}


def _partial_rotary(config: dict[str, Any], rope_dim: int | None) -> None:
    heads = config.get("num_attention_heads")
    if not isinstance(rope_dim, int) or not isinstance(heads, int) or not heads:
        return
    head_dim = config.get("head_dim", config.get("hidden_size", 0) // heads)
    if head_dim and rope_dim != head_dim:
        config["partial_rotary_factor"] = rope_dim / head_dim
