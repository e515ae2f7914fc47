"""Default values for text configs that are nested in the config of a vision model.

transformers 4 writes all sizes to the config of a text model, but to a nested one only the values
that differ from the defaults of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}

_GLM = {
    "vocab_size": 151_552,
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    # Other than in models of text alone, where they have defaults.
    "head_dim": None,
    "partial_rotary_factor": None,
}

#: By the type of the nested config.
NESTED_CONFIG_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14_336, "max_position_embeddings": 131_072},
    "qwen3_5_text": {
        "vocab_size": 248_320,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "max_position_embeddings": 32_768,
    },
    "glm4v_text": _GLM,
    "glm_ocr_text": {
        **_GLM,
        "vocab_size": 59_392,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "attention_bias": False,
    },
    "glm4v_moe_text": {
        **_GLM,
        "vocab_size": 151_424,
        "intermediate_size": 10_944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "max_position_embeddings": 65_536,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
}
