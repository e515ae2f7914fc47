"""The tiny models of the parity tests: one line a configuration, made by transformers' classes.

Each family has its defaults, everything optional switched the other way, and an odd one (a head
size unlike hidden / heads, one key head, a prompt beyond the window), where it has such options.
"""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case
from cases_of_2026 import OF_2026
from delta_net_cases import DELTA_NETS, OLMO_HYBRID
from dense_cases import DENSE
from gated_cases import AFMOE, APERTUS, LAGUNA, MUSE_GLIMMER
from gemma3n_cases import GEMMA3N
from gemma4_cases import GEMMA4
from gpt_cases import GPTS
from granite_cases import GRANITES
from hybrid_cases import HYBRIDS
from indexer_cases import INDEXERS
from kimi_cases import KIMI
from lfm3_cases import LFM3
from llama4_cases import LLAMA4
from mamba_cases import FIRST_MAMBAS, MAMBAS
from mixture_cases import MIXTURES
from older_cases import OLDER
from routed_cases import ROUTED


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}
_ODD = {"head_dim": 20, "num_key_value_heads": 1}
_ODD_HEADS = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1}
_BIASED = {"attention_bias": True, "mlp_bias": True}
_SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW, "num_hidden_layers": 4}
_SHORT = [1.0 + 0.1 * i for i in range(8)]
_LONG = [1.5 + 0.4 * i for i in range(8)]
_LONGROPE = _rope("longrope", short_factor=_SHORT, long_factor=_LONG)
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16}

#: A configuration for each kind of layer: the core suite runs every check of these.
REPRESENTATIVES = (
    "llama-default",
    "gemma2-odd",  # norms around both modules, windows, softcaps
    "phi3-odd",  # a rope that changes with the tokens
    "bloom-default",  # slopes in place of a rope
    "gpt2-default",  # positions that were learnt
    "mixtral-default",
    "gpt_oss-default",  # sinks
    "deepseek_v3-default",
    "deepseek_v32-default",  # an indexer
    "glm_moe_dsa-lent",  # its choice, borrowed
    "qwen3_next-default",  # delta nets, gated attention
    "kimi_linear-as-many-heads",
    "lfm2-default",
    "mamba-default",
    "nemotron_h-experts",  # Mamba 2; layers with one module
    "falcon_h1-default",  # two mixers in one layer
    "gemma3n_text-default",  # several streams, shared keys and values
    "gemma4_text-experts",  # an MLP beside experts
    "llama4_text-published",  # chunks
)

CASES: tuple[Case, ...] = (
    Case("llama", "default", {}, "llama"),
    Case("llama", "switched", {**_BIASED, **_TIED, "hidden_act": "gelu"}, None),
    Case("llama", "biased", {**_BIASED, **_TIED}, "llama"),
    Case("llama", "odd", _ODD, "llama"),
    Case("llama", "linear", _rope("linear", factor=4.0), "llama"),
    Case("llama", "dynamic", {**_rope("dynamic", factor=3.0), "max_position_embeddings": 40}, None),
    Case(
        "llama",
        "llama3",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        "llama",
    ),
    Case("llama", "yarn", _rope("yarn", factor=4.0, original_max_position_embeddings=128), "llama"),
    Case(
        "llama",
        "yarn-options",
        _rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=128,
            attention_factor=0.9,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
        None,
    ),
    Case("mistral", "default", {}, "llama"),
    Case("mistral", "switched", {"sliding_window": None, **_TIED}, "llama"),
    Case("mistral", "odd", {**_ODD, "sliding_window": WINDOW}, None),
    Case("qwen2", "default", {}, "qwen2"),
    Case("qwen2", "switched", {**_SLIDING, "max_window_layers": 2, **_TIED}, None),
    Case("qwen2", "odd", {**_ODD_HEADS, **_TIED}, "qwen2"),
    Case("qwen3", "default", {"head_dim": 16}, "qwen3"),
    Case(
        "qwen3",
        "switched",
        {**_SLIDING, "max_window_layers": 2, **_TIED, "attention_bias": True, "head_dim": 16},
        None,
    ),
    Case("qwen3", "odd", {**_ODD, **_TIED}, "qwen3"),
    Case("gemma", "default", {"head_dim": 16}, "gemma"),
    Case(
        "gemma",
        "switched",
        {"head_dim": 16, **_UNTIED, "attention_bias": True, "hidden_act": "gelu"},
        None,
    ),
    Case("gemma", "odd", _ODD, "gemma"),
    Case("gemma2", "default", _GEMMA, "gemma2"),
    Case(
        "gemma2",
        "switched",
        {
            **_GEMMA,
            **_UNTIED,
            "attention_bias": True,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": WINDOW,
        },
        None,
    ),
    Case(
        "gemma2",
        "odd",
        {
            **_ODD,
            "query_pre_attn_scalar": 20,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 5.0,
        },
        "gemma2",
    ),
    Case("gemma3_text", "default", {**_GEMMA, "num_hidden_layers": 6}, "gemma3"),
    Case(
        "gemma3_text",
        "switched",
        {
            **_GEMMA,
            **_UNTIED,
            "attention_bias": True,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
        None,
    ),
    Case(
        "gemma3_text",
        "odd",
        {
            **_ODD,
            "query_pre_attn_scalar": 20,
            "sliding_window": WINDOW,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
        "gemma3",
    ),
    Case("phi", "default", {"num_key_value_heads": 4, "intermediate_size": 256}, "phi2"),
    Case(
        "phi",
        "switched",
        {
            **_TIED,
            "qk_layernorm": True,
            "hidden_act": "silu",
            "num_key_value_heads": 4,
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 5000.0,
                "partial_rotary_factor": 1.0,
            },
        },
        None,
    ),
    Case("phi", "odd", {**_ODD, "layer_norm_eps": 0.1}, None),
    Case("phi3", "default", {"num_key_value_heads": None}, "phi3"),
    Case(
        "phi3",
        "switched",
        {**_LONGROPE, "original_max_position_embeddings": 128, "sliding_window": WINDOW, **_TIED},
        None,
    ),
    Case(
        "phi3",
        "odd",  # grows past the trained length while it replies
        {**_LONGROPE, "original_max_position_embeddings": 56, "num_key_value_heads": 1},
        "phi3",
    ),
    Case(
        "phi3",
        "long",  # beyond the trained length from the start
        {**_LONGROPE, "original_max_position_embeddings": 32},
        "phi3",
    ),
    Case("starcoder2", "default", {}, "starcoder2"),
    Case(
        "starcoder2",
        "switched",
        {**_UNTIED, "use_bias": False, "hidden_act": "silu", "sliding_window": 4096},
        None,
    ),
    Case("starcoder2", "odd", {**_ODD, "sliding_window": WINDOW, "norm_epsilon": 0.1}, None),
    Case("smollm3", "default", {"num_hidden_layers": 4}, "smollm3"),
    Case(
        "smollm3",
        "switched",
        {**_SLIDING, **_BIASED, **_UNTIED, "no_rope_layers": [0, 1, 0, 1]},
        None,
    ),
    Case("smollm3", "odd", {**_ODD_HEADS, "num_hidden_layers": 5}, "smollm3"),
    Case("granite", "default", {}, "granite"),
    Case(
        "granite",
        "switched",
        {
            **_BIASED,
            **_TIED,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
        },
        "granite",
    ),
    Case("granite", "odd", {**_ODD_HEADS, "attention_multiplier": 0.1}, "granite"),
    Case("glm4", "default", {"head_dim": 16}, "glm4"),
    Case("glm4", "switched", {"head_dim": 16, **_TIED, "attention_bias": False}, "glm4"),
    Case(
        "glm4",
        "odd",
        {
            "head_dim": 24,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "glm4",
    ),
    *MIXTURES,
    *HYBRIDS,
    *DELTA_NETS,
    *OLMO_HYBRID,
    *MAMBAS,
    *FIRST_MAMBAS,
    *DENSE,
    *APERTUS,
    *AFMOE,
    *LLAMA4,
    *KIMI,
    *INDEXERS,
    *GEMMA3N,
    *GEMMA4,
    *ROUTED,
    *LAGUNA,
    *MUSE_GLIMMER,
    *LFM3,
    *GRANITES,
    *OF_2026,
    *OLDER,
    *GPTS,
)
