"""Kimi Linear: three layers of Kimi Delta Attention per layer of MLA, which has no rope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import RopeScaling
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_mlp,
    read_norm,
)
from mrs.architecture.readers.mla_reader import read_latent_attention
from mrs.errors import NotReadable
from mrs.families.deepseek_v2 import GGUF_KEYS, NAMES, dense_layers, read_moe
from mrs.families.mixtral import MIXTRAL_NAMES

#: Keys of the files, and what other families call them.
KEYS = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
LINEAR_KEYS = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


def read(config: Config) -> ModelSpec:
    config = _with_usual_keys(config)
    norm = read_norm(config, default=1e-5)
    latent = _read_latent_attention(config)
    linear = KimiDeltaAttention(
        config.positive("linear_num_heads", config.positive("num_attention_heads")),
        config.positive("linear_head_dim"),
        config.positive("linear_conv_kernel_dim"),
        norm,
    )
    mixers: list[Mixer] = [latent if is_full else linear for is_full in _full_layers(config)]
    dense, moe = read_mlp(config), read_moe(config)
    layers = [
        Layer(mixer, dense if is_dense else moe, norm)
        for mixer, is_dense in zip(mixers, dense_layers(config), strict=True)
    ]
    return decoder(config, "kimi_linear", layers, norm)


def _with_usual_keys(config: Config) -> Config:
    nested = config.mapping("linear_attn_config")
    values = {KEYS.get(key, key): value for key, value in config.values.items()}
    found = {new: nested[key] for key, new in LINEAR_KEYS.items() if key in nested}
    return Config({**values, **found}, config.where)


def _read_latent_attention(config: Config) -> LatentAttention:
    attention = read_latent_attention(config)
    still = RopeScaling("proportional", (("rotated_pairs", 0),))
    return replace(attention, rope=replace(attention.rope, scaling=still))


def _full_layers(config: Config) -> Sequence[bool]:
    """Whether each layer has MLA; the lists of the files count layers from one."""
    count = layer_count(config)
    if config.has("layer_types"):
        kinds = layer_types(config, "linear_attention", "full_attention")
        return [kind == "full_attention" for kind in kinds]
    if config.has("num_key_value_heads_by_layer"):  # in GGUF files
        return [heads > 0 for heads in config.sequence("num_key_value_heads_by_layer")]
    nested = Config(config.mapping("linear_attn_config"), config.where)
    if not nested.has("full_attn_layers"):
        return [layer > 0 and layer % 4 == 0 for layer in range(count)]
    full = nested.sequence("full_attn_layers")
    if not all(isinstance(layer, int) and 0 < layer <= count for layer in full):
        raise NotReadable(f"full_attn_layers = {full!r} are not layers", where=config.where)
    return [layer + 1 in full for layer in range(count)]


FAMILY = Family(
    "kimi_linear",
    read,
    gguf_arch="kimi-linear",
    defaults={
        "scoring_func": "sigmoid",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "moe_renormalize": True,
        "topk_group": 1,
        "routed_scaling_factor": 2.446,
        "first_k_dense_replace": 1,
        "model_max_length": 1_048_576,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
    },
    safetensors={
        **MIXTRAL_NAMES,
        **{slot: name.replace("mlp.", "block_sparse_moe.") for slot, name in NAMES.items()},
        "ffn.router.correction": "block_sparse_moe.gate.e_score_correction_bias",
        # transformers writes the MLP of dense layers under the name of the experts.
        "ffn.gate": "block_sparse_moe.gate_proj",
        "ffn.gate.weight": "mlp.gate_proj.weight",
        "ffn.up": "block_sparse_moe.up_proj",
        "ffn.up.weight": "mlp.up_proj.weight",
        "ffn.down": "block_sparse_moe.down_proj",
        "ffn.down.weight": "mlp.down_proj.weight",
        "mixer.conv_q": "self_attn.q_conv1d",
        "mixer.conv_k": "self_attn.k_conv1d",
        "mixer.conv_v": "self_attn.v_conv1d",
        "mixer.decay_in": "self_attn.f_a_proj",
        "mixer.decay_out": "self_attn.f_b_proj",
        "mixer.step_bias": "self_attn.dt_bias",
        "mixer.decay": "self_attn.A_log",
        "mixer.beta": "self_attn.b_proj",
        "mixer.gate_in": "self_attn.g_a_proj",
        "mixer.gate_out": "self_attn.g_b_proj",
        "mixer.head_norm": "self_attn.o_norm",
        "mixer.out": "self_attn.o_proj",
    },
    gguf={
        "mixer.conv_q": "ssm_conv1d_q",
        "mixer.conv_k": "ssm_conv1d_k",
        "mixer.conv_v": "ssm_conv1d_v",
        "mixer.decay_in": "ssm_f_a",
        "mixer.decay_out": "ssm_f_b",
        "mixer.beta": "ssm_beta",
        "mixer.gate_in": "ssm_g_a",
        "mixer.gate_out": "ssm_g_b",
        "mixer.out": "attn_output",
    },
    gguf_keys={
        **GGUF_KEYS,
        "linear_head_dim": "kda.head_dim",
        "linear_conv_kernel_dim": "ssm.conv_kernel",
    },
    gguf_defaults={"norm_topk_prob": True},
)
