"""Kimi Linear: three layers of Kimi Delta Attention per layer of MLA, which has no rope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, LINEAR, attention_layers, layer_count
from mrs.errors import NotReadable
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.latent_attention.config import MLA_DEFAULTS, MLA_GGUF_KEYS, read_latent_attention
from mrs.layers.mixer import Mixer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SPARSE_BLOCK, mlp_names
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm

_NESTED = "linear_attn_config"
#: Keys of the nested config, and the same in flat ones.
_KEYS = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
KDA_DEFAULTS = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
#: Config key -> metadata key of GGUF files.
KDA_GGUF_KEYS = {
    "linear_head_dim": "kda.head_dim",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
#: Keys of the files, and what other families call them.
KEYS = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
}


def read(config: Config) -> ModelSpec:
    config = config.renamed(KEYS)
    norm = read_norm(config, default=1e-5)
    feed_forward = mixed_layers(config, read_grouped_moe(config), read_mlp(config))
    mixers = read_kda_mixers(config, norm)
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, "kimi_linear", layers, norm)


def read_kda_mixers(config: Config, norm: Norm) -> list[Mixer]:
    """The mixer of each layer: KDA, or MLA without rope.

    KDA has as many heads as MLA if the config has no number of its own.
    """
    config.allow_only("hidden_act", "silu", "swish")
    nested = config.mapping(_NESTED)
    config = config.changed({new: nested[key] for key, new in _KEYS.items() if key in nested})
    latent = read_latent_attention(config, rotates=False)
    linear = KimiDeltaAttention(
        config.positive("linear_num_heads", config.positive("num_attention_heads")),
        config.positive("linear_head_dim"),
        config.positive("linear_conv_kernel_dim"),
        norm,
    )
    return [latent if has_softmax else linear for has_softmax in _softmax_layers(config)]


def _softmax_layers(config: Config) -> Sequence[bool]:
    """Whether each layer has softmax attention; lists in the nested config count from one."""
    listed, count = attention_layers(config, FULL, LINEAR), layer_count(config)
    if listed is not None:
        return listed
    nested = Config(config.mapping(_NESTED), config.where)
    if not nested.has("full_attn_layers"):
        return [layer > 0 and layer % 4 == 0 for layer in range(count)]
    full = nested.sequence("full_attn_layers")
    if not all(isinstance(layer, int) and 0 < layer <= count for layer in full):
        raise NotReadable(f"full_attn_layers = {full!r} are not layers", where=config.where)
    return [layer + 1 in full for layer in range(count)]


#: Shared experts and the MLP of dense layers are in the module of experts, as transformers writes
#: them; published files have the latter under its usual name.
MOE_NAMES: Mapping[str, str] = {
    **SPARSE_BLOCK,
    **mlp_names("ffn.shared", "block_sparse_moe.shared_experts"),
    "ffn.router.correction": "block_sparse_moe.gate.e_score_correction_bias",
    **mlp_names("ffn", "block_sparse_moe"),
    **{f"ffn.{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
}


KDA_NAMES: Mapping[str, str] = {
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
}


GGUF_NAMES: Mapping[str, str] = {
    "mixer.conv_q": "ssm_conv1d_q",
    "mixer.conv_k": "ssm_conv1d_k",
    "mixer.conv_v": "ssm_conv1d_v",
    "mixer.decay_in": "ssm_f_a",
    "mixer.decay_out": "ssm_f_b",
    "mixer.beta": "ssm_beta",
    "mixer.gate_in": "ssm_g_a",
    "mixer.gate_out": "ssm_g_b",
    "mixer.out": "attn_output",
}


FAMILY = Family(
    "kimi_linear",
    read,
    gguf_arch="kimi-linear",
    defaults={
        **{key: size for key, size in MLA_DEFAULTS.items() if key != "q_lora_rank"},
        **KDA_DEFAULTS,
        "scoring_func": "sigmoid",
        "num_experts": 256,
        "num_experts_per_token": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "moe_renormalize": True,
        "topk_group": 1,
        "routed_scaling_factor": 2.446,
        "first_k_dense_replace": 1,
        "model_max_length": 1_048_576,
    },
    safetensors={**MOE_NAMES, **KDA_NAMES},
    gguf=GGUF_NAMES,
    gguf_keys={**MLA_GGUF_KEYS, **GROUPED_MOE_GGUF_KEYS, **KDA_GGUF_KEYS},
    gguf_defaults={"norm_topk_prob": True},
)
