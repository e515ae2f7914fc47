"""What llama.cpp's converter writes of mixtures of experts."""

from __future__ import annotations

import re
from typing import Any

import gguf
import torch
from torch import Tensor

#: Architectures with latent attention.
_LATENT = ("deepseek2", "mistral4", "kimi-linear", "glm-dsa")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def write_mixture(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    keys = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((config[key] for key in keys if config.get(key)), None)
    if arch in _LATENT:
        _write_latent(writer, config)
        if experts is None:  # what llama.cpp asks for all the same
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_expert_shared_count(0)
    if experts is None:
        return
    writer.add_expert_count(experts)
    chosen = (config.get(key) for key in ("num_experts_per_tok", "moe_topk", "moe_k"))
    writer.add_expert_used_count(next(count for count in chosen if count))
    if arch == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])
    if arch == "phimoe":
        writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
        writer.add_rope_scaling_orig_ctx_len(config["max_position_embeddings"])
    if arch == "granitemoe" and config.get("shared_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if arch not in ("llama", "phimoe", "granitemoe", "olmoe"):
        wide = config.get("moe_intermediate_size") or config["intermediate_size"]
        writer.add_expert_feed_forward_length(wide)
    if arch == "afmoe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if arch in _LATENT:
        _write_deepseek(writer, config)
    if arch in ("bailingmoe2", "glm4moe", "dots1", "exaone-moe"):
        _write_sigmoid(writer, config)
    if arch in ("lfm2moe", "minimax-m2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch == "lfm2moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
    if arch == "hunyuan-moe":
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
    if arch == "ernie4_5-moe":
        shared = config["moe_num_shared_experts"]
        writer.add_expert_shared_feed_forward_length(config["moe_intermediate_size"] * shared)
        writer.add_expert_shared_count(shared)
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])


def _write_sigmoid(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """DeepSeek V3's experts with ordinary attention."""
    writer.add_leading_dense_block_count(config.get("first_k_dense_replace", 0))
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])


def _write_latent(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Of a model without experts all layers count as dense ones before the first with experts."""
    dense = config.get("first_k_dense_replace", config["num_hidden_layers"])
    writer.add_leading_dense_block_count(dense)
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    latent, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_kv_lora_rank(latent)
    writer.add_key_length(latent + rotated)
    writer.add_value_length(latent)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rotated)
    rope = config["rope_parameters"]
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def _write_deepseek(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    is_sigmoid = config["model_type"] not in ("deepseek_v2", "mistral4")
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if is_sigmoid else kinds.SOFTMAX)
    if config["n_group"] is not None:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def stack_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors, those of the experts of a layer stacked in their order."""
    stacked: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            stacked[name] = tensor
    for name, of in experts.items():
        stacked[_spelled(name)] = torch.stack([of[number] for number in range(len(of))])
    return stacked


def _spelled(name: str) -> str:
    """LFM 2's names of experts as gguf-py knows them."""
    if "feed_forward" in name:
        for short, long in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            name = name.replace(f".{short}.", f".{long}.")
    return name


def split_latent_maps(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors, the joint map of keys and values as two, that of keys transposed.

    What corrects the choice of experts is called a bias.
    """
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("correction_bias"):  # some files have it as one row
            split[name.replace("correction_bias", "correction.bias")] = tensor.flatten()
            continue
        if name.endswith("expert_bias"):
            split[f"{name}.bias"] = tensor
            continue
        if not name.endswith("kv_b_proj.weight"):
            split[name] = tensor
            continue
        sizes = config["qk_nope_head_dim"], config["v_head_dim"]
        per_head = tensor.view(config["num_attention_heads"], sum(sizes), -1)
        keys, values = per_head.split(sizes, dim=1)
        split[name.replace("kv_b", "k_b")] = keys.transpose(1, 2)
        split[name.replace("kv_b", "v_b")] = values
    return split


def split_pairs(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """gpt-oss's experts as all others have them: rows by output, gate and up apart."""
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj", "proj_bias")):
            split[f"{name}.weight" if name.endswith("sinks") else name] = tensor
            continue
        is_bias = name.endswith("_bias")
        stem = name.removesuffix("_bias") + (".bias" if is_bias else ".weight")
        rows = tensor if is_bias else tensor.transpose(1, 2)
        if "gate_up" in stem:
            split[stem.replace("gate_up", "gate")] = rows[:, ::2]
            split[stem.replace("gate_up", "up")] = rows[:, 1::2]
        else:
            split[stem] = rows
    return split
