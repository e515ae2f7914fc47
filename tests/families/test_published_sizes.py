"""Descriptions of published models have exactly as many parameters as their files.

The configurations and counts are those of the models' pages and weight indexes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from older_sizes import OLDER

from mrs.architecture.family_registry import families
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.config.config import Config
from support.suites import first

_MLA: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
_GPT_OSS: dict[str, Any] = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
}

PUBLISHED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "Mixtral 8x7B": (
        46_702_792_704,
        "mixtral",
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "Qwen 1.5 MoE A2.7B": (
        14_315_784_192,
        "qwen2_moe",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
    ),
    "Qwen 3 30B A3B": (
        30_532_122_624,
        "qwen3_moe",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "head_dim": 128,
            "num_experts": 128,
        },
    ),
    "DeepSeek V2 Lite": (
        15_706_484_224,
        "deepseek_v2",
        {
            **_MLA,
            "vocab_size": 102400,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 6,
        },
    ),
    "DeepSeek V3": (
        671_026_419_200,
        "deepseek_v3",
        {
            **_MLA,
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
        },
    ),
    "gpt-oss 20B": (
        20_914_757_184,
        "gpt_oss",
        {**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    ),
    "gpt-oss 120B": (116_829_156_672, "gpt_oss", {**_GPT_OSS, "num_hidden_layers": 36}),
    "Phi 3.5 MoE": (
        41_873_153_344,
        "phimoe",
        {
            "vocab_size": 32064,
            "hidden_size": 4096,
            "intermediate_size": 6400,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "LFM 2 1.2B": (
        1_170_340_608,
        "lfm2",
        {
            "vocab_size": 65536,
            "hidden_size": 2048,
            "block_ff_dim": 12288,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
    ),
    "Mamba Codestral 7B": (
        7_285_403_648,
        "mamba2",
        {"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64},
    ),
    # Without the layer that predicts the token after the next.
    "Qwen 3 Next 80B A3B": (
        79_674_391_296,
        "qwen3_next",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
        },
    ),
    **OLDER,
}  # fmt: skip


@pytest.mark.few(5)
@pytest.mark.parametrize("name", first(12, PUBLISHED))
def test_parameters_are_counted_to_the_last(name: str) -> None:
    count, family_name, values = PUBLISHED[name]
    family = families()[family_name]
    spec = family.read(Config({**family.defaults, **values}, name))
    parameters = list_parameters(spec, {**SAFETENSORS, **family.safetensors})
    assert len({parameter.name for parameter in parameters}) == len(parameters)
    assert sum(prod(parameter.shape) for parameter in parameters) == count
