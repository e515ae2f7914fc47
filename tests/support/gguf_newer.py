"""What llama.cpp's converter writes of models with states, shared keys and values, or streams."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import gguf
import torch
from torch import Tensor

from support.gguf_gpts import GPT_ARCHS, GPT_SPELLINGS

_LAYER = re.compile(r".*\.layers\.(\d+)\.(.*)")
_HEAD = re.compile(r"(.*)\.norms\.(\d+)\.(.*)")
_MAMBA = {
    "in_proj.weight": "ssm_in.weight",
    "in_proj.bias": "ssm_in.bias",
    "conv1d.weight": "ssm_conv1d.weight",
    "conv1d.bias": "ssm_conv1d.bias",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "norm.weight": "ssm_norm.weight",
    "out_proj.weight": "ssm_out.weight",
}
_GRANITE_MOE = {
    "block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.output_linear.weight": "ffn_down_exps.weight",
}
_GEMMA4 = {
    "layer_scalar": "layer_output_scale.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}
#: Names inside a layer that gguf-py's map lacks, or has for other families only.
_NAMES: dict[str, dict[str, str]] = {
    "falcon-h1": {
        **{f"mamba.{name}": own for name, own in _MAMBA.items()},
        "pre_ff_layernorm.weight": "ffn_norm",
    },
    "granitehybrid": {**{f"mamba.{name}": own for name, own in _MAMBA.items()}, **_GRANITE_MOE},
    "granitemoe": _GRANITE_MOE,
    "mamba2": {f"mixer.{name}": own for name, own in _MAMBA.items()},
    "nemotron_h": {f"mixer.{name}": own for name, own in _MAMBA.items()},
    "nemotron_h_moe": {
        **{f"mixer.{name}": own for name, own in _MAMBA.items()},
        "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight",
        "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight",
        "mixer.experts.up_proj.weight": "ffn_up_exps.weight",
        "mixer.experts.down_proj.weight": "ffn_down_exps.weight",
    },
    "kimi-linear": {
        "self_attn.q_conv1d.weight": "ssm_conv1d_q.weight",
        "self_attn.k_conv1d.weight": "ssm_conv1d_k.weight",
        "self_attn.v_conv1d.weight": "ssm_conv1d_v.weight",
        "self_attn.f_a_proj.weight": "ssm_f_a.weight",
        "self_attn.f_b_proj.weight": "ssm_f_b.weight",
        "self_attn.b_proj.weight": "ssm_beta.weight",
        "self_attn.g_a_proj.weight": "ssm_g_a.weight",
        "self_attn.g_b_proj.weight": "ssm_g_b.weight",
        "self_attn.o_norm.weight": "ssm_norm.weight",
        "self_attn.A_log": "ssm_a",
        "self_attn.dt_bias": "ssm_dt.bias",
        "block_sparse_moe.gate_proj.weight": "ffn_gate.weight",
        "block_sparse_moe.up_proj.weight": "ffn_up.weight",
        "block_sparse_moe.down_proj.weight": "ffn_down.weight",
    },
    "gemma3n": {
        "altup.correction_coefs.weight": "altup_correct_coef.weight",
        "altup.prediction_coefs.weight": "altup_predict_coef.weight",
        "altup.modality_router.weight": "altup_router.weight",
        "altup.router_norm.weight": "altup_router_norm.weight",
        "altup.correct_output_scale": "altup_correct_scale.weight",
        "laurel.linear_left.weight": "laurel_l.weight",
        "laurel.linear_right.weight": "laurel_r.weight",
        "laurel.post_laurel_norm.weight": "laurel_post_norm.weight",
    },
    "gemma4": _GEMMA4,
    "granite_swa": {"self_attn.sinks": "attn_sinks.weight"},
    "hy_v3": {
        "mlp.router.gate.weight": "ffn_gate_inp.weight",
        "mlp.expert_bias": "exp_probs_b",
        "mlp.shared_mlp.gate_proj.weight": "ffn_gate_shexp.weight",
        "mlp.shared_mlp.up_proj.weight": "ffn_up_shexp.weight",
        "mlp.shared_mlp.down_proj.weight": "ffn_down_shexp.weight",
    },
    "muse-glimmer": {
        "input_layernorm.weight": "attn_norm.weight",
        "pre_feedforward_layernorm.weight": "ffn_norm.weight",
        "self_attn.gate_proj.weight": "attn_gate.weight",
    },
    "laguna": {
        "self_attn.g_proj.weight": "attn_gate.weight",
        "mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
    },
    "mimo2": {"self_attn.attention_sink_bias": "attn_sinks.weight"},
    "mistral4": {
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
    },
}


_SPELLINGS = {
    "layer_norm_epsilon": "rms_norm_eps",
    "layers_block_type": "layer_types",
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "top_k_experts": "num_experts_per_tok",
}
_NO_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


#: What configs of Gemma 4 12B lack.
_LARGE_GEMMA = {
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
}


def newer_config(arch: str, config: dict[str, Any]) -> dict[str, Any]:
    """The config under the usual keys; `…_by_layer` is what the file has for each layer."""
    found = {"rope_parameters": _NO_ROPE}
    spellings = {**_SPELLINGS, **GPT_SPELLINGS} if arch in GPT_ARCHS else _SPELLINGS
    found |= {spellings.get(key, key): value for key, value in config.items()}
    kinds = found.get("layer_types") or []
    found.setdefault("num_hidden_layers", len(kinds))
    if found.get("mlp_layer_types"):
        found["first_k_dense_replace"] = found["mlp_layer_types"].index("sparse")
    if arch in ("granitehybrid", "kimi-linear", "nemotron_h", "nemotron_h_moe"):
        heads = 1 if arch == "kimi-linear" else found["num_key_value_heads"]
        is_attention = [kind in ("attention", "full_attention") for kind in kinds]
        found["heads_by_layer"] = [heads * each for each in is_attention]
    if arch == "nemotron_h":
        del found["n_routed_experts"]
    if arch in ("nemotron_h", "nemotron_h_moe"):
        size = found["moe_intermediate_size" if arch == "nemotron_h_moe" else "intermediate_size"]
        found["sizes_by_layer"] = [size * (kind in ("mlp", "moe")) for kind in kinds]
    if arch == "gemma4":
        found = {**_LARGE_GEMMA, **found}
        found |= _gemma4_sizes(found, kinds)
    if arch == "mimo2":
        heads = found["num_key_value_heads"]
        more = [heads * (1 + (kind == "sliding_attention")) for kind in kinds]
        found["heads_by_layer"] = more
    if arch == "cohere2moe":
        size = found["intermediate_size"]
        found |= {
            "intermediate_size": found.get("prefix_dense_intermediate_size") or size,
            "moe_intermediate_size": size,
        }
    if arch == "llama4":
        found |= {
            "intermediate_size": found["intermediate_size_mlp"],
            "moe_intermediate_size": found["intermediate_size"],
        }
    return found


def _gemma4_sizes(config: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    full = config["per_layer_config"][str(kinds.index("full_attention"))]
    heads = config["num_key_value_heads"]
    counts = {"full_attention": full.get("num_key_value_heads", heads), "sliding_attention": heads}
    shared, size = config["num_kv_shared_layers"], config["intermediate_size"]
    wide = size * (1 + config["use_double_wide_mlp"])
    sizes = [size] * (len(kinds) - shared) + [wide] * shared
    return {
        "heads_by_layer": [counts[kind] for kind in kinds],
        "head_dim": full["head_dim"],
        "window_head_dim": config["head_dim"],
        **({"sizes_by_layer": sizes} if wide > size else {}),
    }


def write_newer(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    """The metadata of these architectures that others lack."""
    if config.get("draft_heads") or arch in ("exaone-moe", "hy_v3"):
        writer.add_nextn_predict_layers(config.get("draft_heads", 0))
    if arch in ("falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"):
        _write_mamba(writer, config)
    if arch == "granitehybrid":
        _write_granite(writer, config)
    if arch in ("afmoe", "gemma3n", "gemma4", "olmo2") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if arch in ("gemma3n", "gemma4", "olmo2") and config.get("layer_types"):  # not OLMo 2 itself
        kinds = config["layer_types"]
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
        rope = config["rope_parameters"]
        local = rope.get("sliding_attention", rope)
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if arch == "mimo2":
        ropes = config["rope_parameters"]
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
        share = ropes["full_attention"]["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(config["head_dim"] * share))
        writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
    if arch == "granite_swa" and (bases := config.get("layer_rope_theta")):
        pattern = [bool(base) for base in bases]
        writer.add_array("granite_swa.attention.rope_pattern", pattern)
    if arch == "laguna":
        _write_laguna(writer, config)
    if arch == "cohere2moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_leading_dense_block_count(config.get("first_k_dense_replace") or 0)
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        if shared := config["n_shared_experts"]:
            writer.add_expert_shared_count(shared)
            size = config["moe_intermediate_size"] * shared
            writer.add_expert_shared_feed_forward_length(size)
    if arch in ("exaone-moe", "mimo2", "muse-glimmer"):
        writer.add_sliding_window(config["sliding_window"])
        kinds = config["layer_types"]
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if arch in ("exaone-moe", "hy_v3"):
        size = config["moe_intermediate_size"] * config["n_shared_experts"]
        writer.add_expert_shared_feed_forward_length(size)
    if arch == "hy_v3":
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(config["router_scaling_factor"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch == "muse-glimmer":
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_logit_scale(config["output_multiplier"])
    if arch in ("gemma3n", "gemma4"):
        _write_gemma(writer, arch, config)
    if arch in ("afmoe", "apertus", "llama4"):
        usual = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(config.get("head_dim", usual))
    if arch == "afmoe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(config["route_scale"])
    if arch == "llama4":
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    if arch in ("nemotron_h", "nemotron_h_moe"):
        writer.add_layer_norm_eps(config["rms_norm_eps"])
    if arch == "nemotron_h_moe":
        _write_nemotron(writer, config)
    if arch == "glm-dsa":
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
    if arch == "mistral4":
        trained = config["rope_parameters"]["original_max_position_embeddings"]
        writer.add_attn_temperature_length(trained)
    if arch == "kimi-linear":
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_kda_head_dim(config["linear_head_dim"])


def _write_laguna(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    ropes, head_dim = config["rope_parameters"], config["head_dim"]
    if any(kind == "sliding_attention" for kind in config["layer_types"]):
        writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config["moe_routed_scaling_factor"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    share = ropes["full_attention"].get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(head_dim * share))
    local = ropes["sliding_attention"]
    writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_rope_dimension_count_swa(int(head_dim * local.get("partial_rotary_factor", 1.0)))


def _write_mamba(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    def first(*keys: str) -> Any:
        return next(config[key] for key in keys if key in config)

    heads = first("mamba_n_heads", "mamba_num_heads")
    writer.add_ssm_conv_kernel(first("mamba_d_conv", "conv_kernel"))
    writer.add_ssm_state_size(first("mamba_d_state", "ssm_state_size"))
    writer.add_ssm_group_count(first("mamba_n_groups", "n_groups"))
    writer.add_ssm_inner_size(heads * first("mamba_d_head", "mamba_head_dim"))
    writer.add_ssm_time_step_rank(heads)


def _write_granite(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")


def _write_nemotron(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    if config["moe_latent_size"] is not None:
        writer.add_moe_latent_size(config["moe_latent_size"])


def _write_gemma(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    if arch == "gemma4":
        writer.add_key_length_swa(config["window_head_dim"])
        writer.add_value_length_swa(config["window_head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])
        writer.add_rope_dimension_count_swa(config["window_head_dim"])
        return
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    shares = config["activation_sparsity_pattern"]
    cutoffs = [NormalDist().inv_cdf(share) if share else float("-inf") for share in shares]
    writer.add_activation_sparsity_scale(cutoffs)


def write_numbers(writer: gguf.GGUFWriter, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write the numbers of activations as metadata; the other tensors."""
    activations = [name for name in tensors if ".act_fn." in name]
    for kind in ("alpha_n", "alpha_p", "beta", "eps"):
        numbers = [tensors[name].float().item() for name in activations if name.endswith(kind)]
        if numbers:
            writer.add_array(f"xielu.{kind}", numbers)
    return {name: tensor for name, tensor in tensors.items() if name not in activations}


def newer_tensors(
    arch: str, tensors: dict[str, Tensor], config: dict[str, Any]
) -> dict[str, Tensor]:
    """All tensors, those of layers that gguf-py does not know under the names of the file."""
    tensors = _joined_heads(tensors)
    if arch == "bloom":
        tensors = {name.removeprefix("transformer."): each for name, each in tensors.items()}
    if arch == "falcon-h1":
        tensors = {name: _multiplied(name, each, config) for name, each in tensors.items()}
    if arch == "gemma3n":
        tensors = _stacked_streams(tensors)
    found = {}
    for name, tensor in tensors.items():
        for new, part in _parts(arch, name, tensor, config):
            found[new] = part
    return found


def _parts(
    arch: str, name: str, tensor: Tensor, config: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    match = _LAYER.fullmatch(name)
    if match is None:
        yield name, tensor
        return
    prefix, ending = f"blk.{match[1]}.", match[2]
    if ending.endswith("_linear.weight") and "input" in ending:
        kind = _granite_kind(ending, config)
        gate, up = tensor.chunk(2, dim=-2)
        yield f"{prefix}ffn_gate{kind}.weight", gate
        yield f"{prefix}ffn_up{kind}.weight", up
    elif ending == "shared_mlp.output_linear.weight":
        yield f"{prefix}ffn_down{_granite_kind(ending, config)}.weight", tensor
    elif arch == "llama4" and ending == "feed_forward.experts.gate_up_proj":
        gate, up = tensor.transpose(1, 2).chunk(2, dim=1)
        yield f"{prefix}ffn_gate_exps.weight", gate
        yield f"{prefix}ffn_up_exps.weight", up
    elif arch == "llama4" and ending == "feed_forward.experts.down_proj":
        yield f"{prefix}ffn_down_exps.weight", tensor.transpose(1, 2)
    elif ending in (known := _NAMES.get(arch, {})):
        yield prefix + known[ending], _shaped(known[ending], tensor, config)
    else:
        yield name, tensor


def _granite_kind(ending: str, config: dict[str, Any]) -> str:
    """Which MLP of Granite a fused tensor is of: the experts, the shared one, or the only one."""
    if ending.startswith("block_sparse_moe"):
        return "_exps"
    return "_shexp" if config["num_local_experts"] else ""


def _shaped(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Parts of states in llama.cpp's shapes; decays are no logarithms."""
    if name == "ssm_a":
        return -tensor.exp().view(-1, 1)
    if name == "ssm_d":
        return tensor.view(-1, 1)
    if name == "ssm_conv1d.weight":
        return tensor.squeeze(1)
    if name.startswith("ssm_conv1d_"):
        return tensor.reshape(1, len(tensor), 1, -1)
    if name == "ssm_norm.weight" and "linear_head_dim" not in config:
        return tensor.view(config.get("mamba_n_groups") or config["n_groups"], -1)
    return tensor


def _multiplied(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Falcon-H1's weights, with all its factors in them."""
    inner, heads = config["mamba_d_ssm"], config["mamba_n_heads"]
    weights = config["mamba_n_groups"] * config["mamba_d_state"]
    rows = torch.tensor([inner, inner, weights, weights, heads])
    parts = torch.tensor(config["ssm_multipliers"]).repeat_interleave(rows)[:, None]
    gate, down = config["mlp_multipliers"]
    into = config["attention_in_multiplier"]
    factors: dict[str, Any] = {
        "gate_proj.weight": gate,
        "down_proj.weight": down,
        "q_proj.weight": into,
        "k_proj.weight": into * config["key_multiplier"],
        "v_proj.weight": into,
        "o_proj.weight": config["attention_out_multiplier"],
        "out_proj.weight": config["ssm_out_multiplier"],
        "in_proj.weight": config["ssm_in_multiplier"] * parts,
        "lm_head.weight": config["lm_head_multiplier"],
        "embed_tokens.weight": config["embedding_multiplier"],
    }
    found = (factor for ending, factor in factors.items() if name.endswith((f".{ending}", ending)))
    return tensor * next(found, 1.0)


def _stacked_streams(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors, the maps into streams and out of them stacked."""
    stacked = {name: each for name, each in tensors.items() if "embed_projections" not in name}
    for kind, new in (("altup_projections", "altup_proj"), ("altup_unembed", "altup_unembd_proj")):
        names = sorted(name for name in tensors if kind in name)
        stacked = {name: each for name, each in stacked.items() if name not in names}
        stacked[f"{new}.weight"] = torch.stack([tensors[name] for name in names])
    return stacked


def _joined_heads(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors, the norms of the heads of a layer as rows of one."""
    joined, heads = {}, defaultdict(dict)
    for name, tensor in tensors.items():
        if match := _HEAD.fullmatch(name):
            heads[f"{match[1]}.{match[3]}"][int(match[2])] = tensor
        else:
            joined[name] = tensor
    return joined | {
        name: torch.stack([of[i] for i in range(len(of))]) for name, of in heads.items()
    }
