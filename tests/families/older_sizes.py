"""Published models of the first years, as in `test_published_sizes.py`."""

from __future__ import annotations

from typing import Any

OLDER: dict[str, tuple[int, str, dict[str, Any]]] = {
    "GPT-2": (
        124_439_808,
        "gpt2",
        {
            "vocab_size": 50257,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
        },
    ),
    "Pythia 1B": (
        1_011_781_632,
        "gpt_neox",
        {
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "rotary_pct": 0.25,
        },
    ),
    "OPT 125M": (
        125_239_296,
        "opt",
        {
            "vocab_size": 50272,
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
        },
    ),
    "Falcon 7B": (
        6_921_720_704,
        "falcon",
        {
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
        },
    ),
    "Falcon 40B": (
        41_303_293_952,
        "falcon",
        {
            "vocab_size": 65024,
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
        },
    ),
    "StableLM 2 12B": (
        12_143_185_920,
        "stablelm",
        {
            "vocab_size": 100352,
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "qk_layernorm": True,
            "use_parallel_residual": True,
        },
    ),
    "OLMo 1B": (
        1_176_764_416,
        "olmo",
        {
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
    "OLMoE": (
        6_919_161_856,
        "olmoe",
        {
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
        },
    ),
    "StarCoder": (
        15_517_456_384,
        "gpt_bigcode",
        {
            "vocab_size": 49152,
            "n_embd": 6144,
            "n_layer": 40,
            "n_head": 48,
            "n_positions": 8192,
            "n_inner": 24576,
        },
    ),
    "GPT-J": (
        6_050_882_784,
        "gptj",
        {
            "vocab_size": 50400,
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
        },
    ),
    "Command R": (
        34_980_831_232,
        "cohere",
        {
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
        },
    ),
    "GLM 4 9B": (
        9_399_951_360,
        "glm",
        {
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
        },
    ),
    "Granite 3.0 1B A400M": (
        1_334_628_352,
        "granitemoe",
        {
            "vocab_size": 49155,
            "hidden_size": 1024,
            "intermediate_size": 512,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "num_experts_per_tok": 8,
            "tie_word_embeddings": True,
        },
    ),
    "InternLM3 8B": (
        8_804_241_408,
        "internlm3",
        {
            "vocab_size": 128512,
            "hidden_size": 4096,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "qkv_bias": False,
            "bias": False,
        },
    ),
    "Ministral 8B": (
        8_019_808_256,
        "ministral",
        {
            "vocab_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    ),
    "BLOOM 560M": (
        559_214_592,
        "bloom",
        {
            "vocab_size": 250880,
            "n_embed": 1024,
            "n_layer": 24,
            "num_attention_heads": 16,
        },
    ),
    "MPT 7B": (
        6_649_286_656,
        "mpt",
        {
            "vocab_size": 50432,
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention"},
        },
    ),
}
