"""Read the rope scaling from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_SCALING_KEYS: dict[str, str] = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
}


def gguf_rope_scaling(
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
