"""What configs of text models leave out where they lie inside another config.

There transformers 4 writes what differs from a class's own values, where it writes all sizes of a
model alone.
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
LEFT_OUT: dict[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14_336, "max_position_embeddings": 131_072},
}
