"""Decoders with random weights, small enough to run hundreds of times in a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mrs.architecture.family_registry import families
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.config.config import Config
from mrs.formats import FORMATS
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.kv_codes import KVType
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.quantization.gguf import encode
from mrs.quantization.matrix import DenseMatrix, Matrix
from mrs.request import Sampling
from mrs.weights.binding import Parameter

CPU, OTHER_CPU = torch.device("cpu"), torch.device("cpu", 0)
VOCABULARY, WINDOW = 50, 12
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0)
WARM = Sampling(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
_ROPE = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "rope_type": "longrope"}
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama"},
    "window": {"model_type": "mistral", "sliding_window": WINDOW},
    "hybrid": {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "latent": {
        "model_type": "deepseek_v2",
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 3,
    },
    "delta": {
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "longrope": {
        "model_type": "phi3",
        "rope_scaling": _ROPE,
        "original_max_position_embeddings": 40,
    },
    "dynamic": {
        "model_type": "llama",
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 40,
    },
}


#: Models of which the native library computes whole layers.
_PACKED_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 5}
PACKED_CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama"},
    "window": {"model_type": "mistral", "sliding_window": WINDOW},
    "some without rope": {"model_type": "smollm3", "no_rope_layers": [1, 1, 0, 1, 1]},
    "dynamic": CONFIGS["dynamic"],
    "biased": {"model_type": "qwen2"},
    "norms around": {"model_type": "gemma2", "head_dim": 32, "query_pre_attn_scalar": 32},
    "norms after": {"model_type": "olmo2"},
    "one convolution": {
        "model_type": "lfm2",
        "layer_types": ["full_attention"] * 2 + ["conv"] + ["full_attention"] * 2,
        "block_auto_adjust_ff_dim": False,
    },
    "scaled queries": {
        "model_type": "llama4_text",
        "moe_layers": [],
        "intermediate_size_mlp": 96,
        "num_local_experts": 4,
        "attention_chunk_size": 64,
        "floor_scale": 8,
        "no_rope_layers": [1, 1, 0, 1, 1],
    },
    "one latent": {
        "model_type": "kimi_linear",
        "layer_types": ["linear_attention"] * 2 + ["full_attention"] + ["linear_attention"] * 2,
        "mlp_layer_types": ["dense"] * 5,
        "num_key_value_heads": 4,
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "states": {
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention"] * 2 + ["full_attention"] + ["linear_attention"] * 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "two mixers": {
        "model_type": "falcon_h1",
        "head_dim": 16,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
    },
    "layer norms": {"model_type": "starcoder2", "use_bias": True},
    "scaled": {"model_type": "granite", "residual_multiplier": 0.3},
    "head norms": {"model_type": "qwen3", "head_dim": 32},
}
#: The latent vectors of one layer have a size that native attention does not know.
PACKED_CONFIGS["odd latent"] = {**PACKED_CONFIGS["one latent"], "qk_rope_head_dim": 12}


#: One of each kind of layer, in sizes that the native library computes.
_MIXED_SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
MIXED_CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama"},
    "mixture": {"model_type": "qwen3_moe", **_EXPERTS, "norm_topk_prob": True},
    "shared expert": {
        "model_type": "qwen2_moe",
        **_EXPERTS,
        "shared_expert_intermediate_size": 32,
    },
    "close experts": {"model_type": "phimoe", "num_local_experts": 6},
    "sinks": {
        "model_type": "gpt_oss",
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
    },
    "latent": {
        "model_type": "deepseek_v3",
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "chosen keys": {
        "model_type": "glm_moe_dsa",
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "index_n_heads": 10,
        "index_head_dim": 32,
        "index_topk": 20,
        "indexer_types": ["full", "shared", "full"],
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "delta": {
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 24,
        **_EXPERTS,
        "shared_expert_intermediate_size": 32,
    },
    "channel decays": {
        "model_type": "kimi_linear",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense"] * 3,
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "linear_num_heads": 2,
        "linear_head_dim": 32,
    },
    "state space": {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_d_state": 32,
        "mamba_n_groups": 2,
    },
    "convolution": {**CONFIGS["hybrid"], "conv_bias": True},
    "capped": {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 5.0,
    },
    "exact gelu": {"model_type": "gemma3_text", "hidden_activation": "gelu"},
    "parallel": {"model_type": "phi", "num_key_value_heads": 4, "hidden_act": "gelu_new"},
    "layer norm": {"model_type": "starcoder2"},
    "shared keys": {
        "model_type": "gemma4_text",
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "sliding_window": WINDOW,
        "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "streams": {
        "model_type": "gemma3n_text",
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "sliding_window": WINDOW,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 32,
        "activation_sparsity_pattern": [0.9, 0.0, 0.0],
    },
    "chunks": {
        "model_type": "llama4_text",
        "attention_chunk_size": 64,
        "intermediate_size_mlp": 96,
        "num_local_experts": 4,
        "floor_scale": 8,
        "no_rope_layers": [1, 0, 1],
    },
    "learned activation": {"model_type": "apertus"},
}


def mixed_decoder(kind: str, format_name: str, *, residuals: bool = False) -> Decoder:
    """Its matrices are packed, and it caches keys in bf16, as a run does; or all is float32.

    With `residuals` products are those of 16-bit activations.
    """
    is_float = format_name == "F32"

    def to_matrix(numbers: Tensor) -> Matrix:
        if is_float:
            return DenseMatrix(numbers)
        matrix = PackedMatrix(format_name, *numbers.shape)
        matrix.fill(encode(numbers, FORMATS[format_name]))
        if residuals:
            matrix.add_residuals()
        return matrix

    config = {**_SIZES, **_MIXED_SIZES, **MIXED_CONFIGS[kind]}
    return _decoder(config, [CPU] * 3, to_matrix, torch.float32 if is_float else torch.bfloat16)


@cache
def tiny_decoder(
    kind: str, *, split: bool = False, head_dim: int = 8, cache_dtype: KVType = torch.float32
) -> Decoder:
    """The same weights every time; with `split` the middle layer sits on another device."""
    devices = [CPU, OTHER_CPU if split else CPU, CPU]
    sizes = {**_SIZES, **({} if head_dim == 8 else {"head_dim": head_dim})}
    return _decoder({**sizes, **CONFIGS[kind]}, devices, DenseMatrix, cache_dtype)


def decoder_on(kind: str, device: torch.device) -> Decoder:
    """The same weights on another device."""
    return _decoder({**_SIZES, **CONFIGS[kind]}, [device] * 3, DenseMatrix, primary=device)


def random_decoder(config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> Decoder:
    """A model of any size, whose matrices and caches are of `dtype`."""
    devices = [device] * config["num_hidden_layers"]
    return _decoder(config, devices, lambda x: DenseMatrix(x.to(dtype)), dtype, device, dtype)


def packed_decoder(kind: str) -> Decoder:
    """Its matrices are packed, so that there has to be a native library."""
    return _decoder({**_SIZES, **_PACKED_SIZES, **PACKED_CONFIGS[kind]}, [CPU] * 5, _packed)


def _decoder(
    config: Mapping[str, Any],
    devices: Sequence[torch.device],
    to_matrix: Callable[[Tensor], Matrix],
    cache_dtype: KVType = torch.float32,
    primary: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    family = families()[config["model_type"]]
    spec = family.read(Config({**family.defaults, **config}, "tiny"))
    chance = torch.Generator().manual_seed(7)
    matrices, vectors = {}, {}
    for parameter in list_parameters(spec, {**SAFETENSORS, **family.safetensors}):
        device = primary if parameter.layer is None else devices[parameter.layer]
        numbers = _numbers(parameter, chance).to(device)
        if parameter.role == "dense":
            vectors[parameter.name] = numbers.to(
                cache_dtype if isinstance(cache_dtype, torch.dtype) else dtype
            )
        elif parameter.role == "vector":
            vectors[parameter.name] = numbers
        else:
            matrices[parameter.name] = to_matrix(numbers)
    return Decoder(spec, ModelWeights(matrices, vectors), devices, dtype, cache_dtype)


def _packed(numbers: Tensor) -> PackedMatrix:
    matrix = PackedMatrix("BF16", *numbers.shape)
    matrix.fill(numbers.bfloat16().view(torch.uint8))
    return matrix


def _numbers(parameter: Parameter, chance: torch.Generator) -> Tensor:
    numbers = torch.randn(parameter.shape, generator=chance)
    if "decay" in parameter.name:
        return -numbers.abs()
    if "norm" in parameter.name:
        return 1 + 0.1 * numbers
    return numbers if parameter.role in ("vector", "dense") else 0.35 * numbers
