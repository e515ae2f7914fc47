"""Find the language model inside a checkpoint that also sees or hears."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

#: What the names of its tensors start with in such checkpoints.
PREFIX = "language_model."


def text_part(config: Mapping[str, Any], tensors: Collection[str]) -> tuple[Mapping[str, Any], str]:
    """(config, prefix of tensor names) of the language model; ("as it is", "") where it is alone.

    Whether its head is tied is said in either of two configs, and by the tensors for certain.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping) or not any(name.startswith(PREFIX) for name in tensors):
        return config, ""
    tied = f"{PREFIX}lm_head.weight" not in tensors
    quantization = config.get("quantization_config")
    return {"quantization_config": quantization, **text, "tie_word_embeddings": tied}, PREFIX
