"""Write a language model as the GGUF file that llama.cpp's converter makes of it.

The facts come from that converter: which metadata it writes for which architecture, which rows it
permutes, which norms it shifts. Tensor names come from gguf-py's own map.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import torch
from torch import Tensor

from support.gguf_gpts import GPT_ARCHS, gpt_tensor
from support.gguf_hybrids import (
    converted_state_tensor,
    hybrid_config,
    regroup_projections,
    tile_value_heads,
    write_hybrid,
)
from support.gguf_mixtures import (
    split_latent_maps,
    split_pairs,
    stack_experts,
    write_mixture,
)
from support.gguf_newer import newer_config, newer_tensors, write_newer, write_numbers

_ARCHS = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
#: Those that gguf-py does not know yet, by those whose tensors have the same names.
_NEWER_ARCHS = {
    "cohere2moe": "dots1",
    "granite_swa": "granite",
    "hy_v3": "exaone-moe",
    "laguna": "dots1",
    "mellum": "qwen3moe",
    "muse-glimmer": "olmo2",
}
#: Architectures whose q and k rows are reordered so that rotary pairs are neighbours.
_PERMUTED = (
    *("llama", "granite", "granitemoe", "smollm3", "arcee", "mistral3", "granitehybrid"),
    *("olmo", "muse-glimmer", "granite_swa"),
)
#: Others whose files say how much of a head rotates.
_PARTLY_ROTATED = (
    *("phi2", "phi3", "glm4", "chatglm", "stablelm", "nemotron", "jais2", "gptneox"),
)
_SHIFTED_NORMS = (*("gemma", "gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe"),)


def write_text_model(
    path: Path,
    arch: str,
    text_config: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    like: str | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
    numbers: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """`tensors` have the names of transformers' text model; `text_config` all of its keys.

    An `arch` that gguf-py does not know is written `like` another, with further `names` of tensors
    (after `model.layers.N.` those after `blk.N.`) and `numbers` in its metadata.
    """
    writer = gguf.GGUFWriter(path, arch)
    for key, number in numbers.items():
        writer.add_uint32(f"{arch}.{key}", number)
    tensors = {_further_name(name, names): tensor for name, tensor in tensors.items()}
    arch = like or arch
    config = hybrid_config(arch, newer_config(arch, text_config), tensors)
    _write_metadata(writer, arch, config)
    tensors = newer_tensors(arch, stack_experts(write_numbers(writer, tensors)), config)
    known_arch = _ARCHS[_NEWER_ARCHS.get(arch, arch)]
    known_names = gguf.get_tensor_name_map(known_arch, config["num_hidden_layers"])
    converted = split_latent_maps(split_pairs(tensors), config)
    converted = regroup_projections(tile_value_heads(arch, converted, config), config)
    for name, tensor in converted.items():
        known = known_names.get_name(name, try_suffixes=(".weight", ".bias"))
        is_named = name in names.values() or name.startswith(("blk.", "altup_"))
        mapped = name if is_named else known
        assert mapped is not None, name
        writer.add_tensor(mapped, _converted(arch, name, tensor, config).contiguous().numpy())
    for name, tensor in _extra_tensors(arch, config):
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _further_name(name: str, names: Mapping[str, str]) -> str:
    """What `names` call a tensor in a GGUF file; itself if they do not name it."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if layer is not None and layer[2] in names:
        return f"blk.{layer[1]}.{names[layer[2]]}"
    return names.get(name, name)


def _layer_norm_eps(config: dict[str, Any]) -> float:
    keys = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    return next((config[key] for key in keys if key in config), 1e-5)


def _head_dim(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return rope.get("full_attention", rope)


def _write_metadata(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config.get("sizes_by_layer", config["intermediate_size"]))
    query_heads = config.get("num_attention_heads_per_layer") or config["num_attention_heads"]
    writer.add_head_count(query_heads)
    # Latent attention is one key head to llama.cpp.
    is_latent = arch in ("deepseek2", "mistral4", "kimi-linear", "glm-dsa")
    heads = 1 if is_latent else config["num_key_value_heads"]
    writer.add_head_count_kv(config.get("heads_by_layer", heads))
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(_layer_norm_eps(config))
    if config.get("head_dim") is not None and not is_latent:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config.get("v_head_dim", config["head_dim"]))
    if arch not in ("gemma", "gemma2", "phi2", *GPT_ARCHS):
        writer.add_rope_freq_base(_rope(config)["rope_theta"])
    if arch not in ("gemma", "gemma2", "phi2", "phi3", *GPT_ARCHS):
        _write_rope_scaling(writer, _rope(config))
    if "mrope_section" in _rope(config):
        writer.add_rope_dimension_sections([*_rope(config)["mrope_section"], 0])
    _write_special(writer, arch, config)
    write_mixture(writer, arch, config)
    write_hybrid(writer, arch, config)
    write_newer(writer, arch, config)
    # A converter writes the tokenizer here; a file without one says so and gives the size.
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])


def _write_rope_scaling(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _write_special(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    """What only some architectures have."""
    part = _rope(config).get("partial_rotary_factor", 1.0)
    if arch in _PARTLY_ROTATED or (arch in _PERMUTED and arch != "granitehybrid"):
        writer.add_rope_dimension_count(int(_head_dim(config) * part))
    if arch == "gemma3":
        writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if arch in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        if "long_factor" in _rope(config):
            writer.add_rope_scaling_attn_factors(_longrope_magnitude(config))
    if arch in ("exaone4", "cohere2", "cohere2moe", "granite_swa", "mellum"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if arch in ("exaone4", "cohere2moe", "granite_swa", "mellum"):
        kinds = config["layer_types"]
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if arch in ("stablelm", "gptneox"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    if arch in ("cohere2", "cohere2moe", "command-r"):
        writer.add_logit_scale(config["logit_scale"])
    if arch in ("bailingmoe2", "cohere2", "cohere2moe", "glm4moe", "minimax-m2"):
        writer.add_rope_dimension_count(int(_head_dim(config) * part))
    if arch == "mpt":
        writer.add_max_alibi_bias(config["attn_config"]["alibi_bias_max"])
        if config["attn_config"]["clip_qkv"] is not None:
            writer.add_clamp_kqv(config["attn_config"]["clip_qkv"])
    if arch == "olmo" and config["clip_qkv"] is not None:
        writer.add_clamp_kqv(config["clip_qkv"])
    if "llama_4_scaling_beta" in _rope(config):
        writer.add_attn_temperature_scale(_rope(config)["llama_4_scaling_beta"])
        writer.add_rope_scaling_yarn_log_mul(_rope(config)["mscale_all_dim"])
    if arch in ("granite", "granite_swa", "granitemoe"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def _longrope_magnitude(config: dict[str, Any]) -> float:
    trained = config["original_max_position_embeddings"]
    stretch = config["max_position_embeddings"] / trained
    return math.sqrt(1 + math.log(stretch) / math.log(trained)) if stretch > 1 else 1.0


def _converted(arch: str, name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    if arch in GPT_ARCHS:
        return gpt_tensor(arch, name, tensor, config)
    if arch in _SHIFTED_NORMS and name.endswith("norm.weight") and "linear_attn" not in name:
        return tensor + 1
    if arch == "muse-glimmer" and "norm.weight" in name and name != "model.norm.weight":
        return tensor + 1
    if arch in _PERMUTED and ".q_proj." in name:
        return _neighbouring_pairs(tensor, config["num_attention_heads"])
    if arch in _PERMUTED and ".k_proj." in name:
        return _neighbouring_pairs(tensor, config["num_key_value_heads"])
    if arch == "glm4" and "mrope_section" in _rope(config) and re.search(r"\.[qk]_proj\.", name):
        return _split_pairs(tensor, config)
    return converted_state_tensor(name, tensor)


def _neighbouring_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Within each head, row i and row i + half become rows 2i and 2i + 1."""
    per_head = tensor.unflatten(0, (heads, 2, -1))
    return per_head.transpose(1, 2).flatten(0, 2)


def _split_pairs(tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Within the rotated rows of each head, those with even indices, then the others."""
    head_dim = _head_dim(config)
    rotated = int(head_dim * _rope(config).get("partial_rotary_factor", 1.0))
    rows = torch.arange(head_dim)
    order = torch.cat((rows[:rotated:2], rows[1:rotated:2], rows[rotated:]))
    return tensor.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)


def _extra_tensors(arch: str, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    rope = _rope(config)
    if rope["rope_type"] == "proportional":
        yield "rope_freqs.weight", _proportional_factors(rope, config["head_dim"])
    if rope["rope_type"] == "llama3":
        yield "rope_freqs.weight", _llama3_factors(rope, _head_dim(config))
    if arch == "muse-glimmer":
        for layer in range(config["num_hidden_layers"]):
            ones = torch.ones(config["head_dim"])
            yield f"blk.{layer}.attn_q_norm.weight", ones * config["qk_scale_factor"]
            yield f"blk.{layer}.attn_k_norm.weight", ones
    if arch == "phi3" and "long_factor" in rope:
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"])


def _proportional_factors(rope: dict[str, Any], head_dim: int) -> Tensor:
    """Gemma 4's: by 1e30, pairs beyond the first ones do not move."""
    factors = torch.full((head_dim // 2,), 1e30)
    factors[: int(head_dim * rope["partial_rotary_factor"] / 2)] = 1.0
    return factors


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> Tensor:
    """By how much Llama 3.1 slows each pair: not at all, by `factor`, or in between."""
    factors = []
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return torch.tensor(factors, dtype=torch.float32)
