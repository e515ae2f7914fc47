"""Qwen3-VL: Qwen 3, whose first layers get further features of images."""

from __future__ import annotations

from mrs.architecture.vision.towers.qwen3_tower import qwen3_family

#: Layers of the tower with further features, if the config has no others.
TAPPED = (8, 16, 24)

FAMILY = qwen3_family(
    "qwen3_vl",
    TAPPED,
    text="qwen3",
    text_types={"qwen3_vl_text": "qwen3"},
    text_defaults={
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 128_000,
        "rope_theta": 5e5,
    },
)
