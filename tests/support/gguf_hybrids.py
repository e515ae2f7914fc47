"""What llama.cpp's converter writes of models with short convolutions or linear attention."""

from __future__ import annotations

from typing import Any

import gguf
import torch
from torch import Tensor


def hybrid_config(arch: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The config under the keys that others have, with what is given for each layer."""
    if arch == "mamba":
        nothing = ("num_attention_heads", "num_key_value_heads")
        return {
            **config,
            **dict.fromkeys(nothing, 0),
            "intermediate_size": 0,
            "mamba_d_inner": config["intermediate_size"],
            "mamba_d_state": config["state_size"],
            "mamba_d_conv": config["conv_kernel"],
            "mamba_dt_rank": config["time_step_rank"],
        }
    if arch == "jamba":
        heads, period = config["num_key_value_heads"], config["attn_layer_period"]
        layers = range(config["num_hidden_layers"])
        offset = config["attn_layer_offset"]
        return {
            **config,
            "heads_by_layer": [heads * (layer % period == offset) for layer in layers],
            "mamba_d_inner": config["mamba_expand"] * config["hidden_size"],
        }
    if arch == "mamba2":
        nothing = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
        return {
            **{key: value for key, value in config.items() if key != "head_dim"},
            **dict.fromkeys(nothing, 0),
            "mamba_n_heads": config["num_heads"],
            "mamba_d_head": config["head_dim"],
            "mamba_d_state": config["state_size"],
        }
    if arch not in ("lfm2", "lfm2moe"):
        return config
    if arch == "lfm2moe":
        intermediate = config["intermediate_size"]
    else:
        intermediate = tensors["model.layers.0.feed_forward.w1.weight"].shape[0]
    heads = config["num_key_value_heads"]
    return {
        **config,
        "rms_norm_eps": config["norm_eps"],
        "intermediate_size": intermediate,
        "num_key_value_heads": [heads * (t != "conv") for t in config["layer_types"]],
    }


def write_hybrid(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    if arch in ("jamba", "mamba"):
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_inner_size(config["mamba_d_inner"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_time_step_rank(config["mamba_dt_rank"])
    if arch == "mamba":
        writer.add_ssm_dt_b_c_rms("mixer_rms_eps" in config)
    if arch in ("lfm2", "lfm2moe"):
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if arch in ("qwen3next", "qwen35", "qwen35moe"):
        value_heads = config["linear_num_value_heads"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(value_heads)
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * value_heads)
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
        writer.add_rope_dimension_count(
            int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
        )
        if arch != "qwen3next" and "mrope_section" not in config["rope_parameters"]:
            writer.add_rope_dimension_sections([1, 1, 0, 0])


def tile_value_heads(
    arch: str, tensors: dict[str, Tensor], config: dict[str, Any]
) -> dict[str, Tensor]:
    """All tensors of Qwen 3.5, value heads in the order in which key heads repeat one by one."""
    if arch not in ("qwen35", "qwen35moe"):
        return tensors
    keys = config["linear_num_key_heads"]
    repeats = config["linear_num_value_heads"] // keys

    def tiled(tensor: Tensor, dim: int = 0) -> Tensor:
        heads = tensor.unflatten(dim, (keys, repeats, -1))
        return heads.transpose(dim, dim + 1).flatten(dim, dim + 2)

    rest = 2 * keys * config["linear_key_head_dim"]
    found = {}
    for name, tensor in tensors.items():
        kind = name.partition("linear_attn.")[2]
        if kind in ("in_proj_qkv.weight", "conv1d.weight"):
            tensor = torch.cat((tensor[:rest], tiled(tensor[rest:])))
        elif kind == "out_proj.weight":
            tensor = tiled(tensor, 1)
        elif kind and kind != "norm.weight":
            tensor = tiled(tensor)
        found[name] = tensor
    return found


def converted_state_tensor(name: str, tensor: Tensor) -> Tensor:
    """A convolution's weight loses the dimension of one channel; decays are no logarithms."""
    if name.endswith("A_log"):
        return -tensor.exp()
    return tensor.squeeze(1) if name.endswith(("conv.conv.weight", "conv1d.weight")) else tensor


def regroup_projections(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors under names of which gguf-py knows what they become.

    The joint projection of a delta net has a stretch of each part for every key head. It is
    split into those of queries, keys and values, one after another, and that of gates.
    """
    regrouped: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith("in_proj_qkvz.weight"):
            regrouped[name.replace("dt_bias", "dt_proj.bias")] = tensor
            continue
        heads, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
        parts = tensor.view(heads, -1, tensor.shape[1]).split((keys, keys, values, values), dim=1)
        q, k, v, z = (part.flatten(0, 1) for part in parts)
        layer = name.split(".")[2]
        regrouped[f"blk.{layer}.attn_qkv.weight"] = torch.cat((q, k, v))
        regrouped[f"blk.{layer}.attn_gate.weight"] = z
    return regrouped
