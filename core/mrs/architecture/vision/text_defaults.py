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

#: By text family.
NESTED_CONFIG_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14_336, "max_position_embeddings": 131_072},
}

#: Those of Qwen 2, which differ in Qwen2-VL and Qwen2.5-VL.
QWEN2_VL = {
    "vocab_size": 152_064,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_window_layers": 80,
}
