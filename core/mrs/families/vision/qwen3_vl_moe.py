"""Qwen3-VL with a mixture of experts, whose published files have their matrices transposed."""

from __future__ import annotations

from mrs.families.vision.qwen3_vl import TAPPED, qwen3_family

FAMILY = qwen3_family(
    "qwen3_vl_moe",
    TAPPED,
    text="qwen3_moe",
    text_types={"qwen3_vl_moe_text": "qwen3_moe"},
    text_names={
        "ffn.experts.{expert}.gate_up.weight": "mlp.experts.gate_up_proj^T",
        "ffn.experts.{expert}.down.weight": "mlp.experts.down_proj^T",
    },
    text_defaults={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 128_000,
        "rope_theta": 5e5,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": True,
    },
)
