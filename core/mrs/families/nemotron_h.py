"""Nemotron-H and Nemotron 3: layers of one module each, Mamba 2, attention, MLP or experts."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import NoFeedForward, NoMixer
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import decoder, read_attention, read_norm
from mrs.architecture.readers.mamba2_reader import read_mamba2
from mrs.architecture.readers.moe_reader import expert_count, read_router
from mrs.errors import Unsupported
from mrs.families import deepseek_v2
from mrs.families.granitemoehybrid import GGUF_MAMBA_KEYS, GGUF_MAMBA_NAMES

#: What each layer is, in all spellings of configs; older ones have a letter for each layer.
KINDS = {
    "M": "mamba",
    "mamba": "mamba",
    "linear_attention": "mamba",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "-": "mlp",
    "mlp": "mlp",
    "E": "moe",
    "moe": "moe",
}
LIST_KEYS = ("layer_types", "layers_block_type", "hybrid_override_pattern")
DEFAULT_LAYERS = ("linear_attention", "moe", "full_attention", "mlp")


def read(config: Config) -> ModelSpec:
    kinds = _layer_kinds(config)
    config = Config({**config.values, "num_hidden_layers": len(kinds)}, config.where)
    norm = read_norm(config, "layer_norm_epsilon", default=config.number("layer_norm_eps", 1e-5))
    of_kind = {kind: _read_layer(config, kind, norm) for kind in set(kinds)}
    return decoder(config, "nemotron_h", [of_kind[kind] for kind in kinds], norm)


def _layer_kinds(config: Config) -> Sequence[str]:
    if config.has("num_key_value_heads_by_layer"):  # in GGUF files, where it is 0 for the others
        feed_forward = "moe" if expert_count(config) else "mlp"
        return [
            "attention" if heads else feed_forward if size else "mamba"
            for heads, size in zip(
                config.sequence("num_key_value_heads_by_layer"),
                config.sequence("intermediate_size_by_layer"),
                strict=True,
            )
        ]
    key = next((key for key in LIST_KEYS if config.has(key)), None)
    kinds = DEFAULT_LAYERS if key is None else config.values[key]
    if not isinstance(kinds, str):
        kinds = config.sequence(key or LIST_KEYS[0], DEFAULT_LAYERS)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise Unsupported(f"layers of type {unknown[:1]} are not supported", where=config.where)
    return [KINDS[kind] for kind in kinds]


def _read_layer(config: Config, kind: str, norm: Norm) -> Layer:
    if kind == "mamba":
        # The models have no upper limit, whatever `time_step_limit` says.
        limits = {"least_step": config.number("time_step_min", 0.001), "most_step": float("inf")}
        bias = config.flag("use_bias", False)
        mamba = read_mamba2(config, norm=norm, bias=bias, out_bias=bias, **limits)
        return Layer(mamba, NoFeedForward(), norm)
    if kind == "attention":
        return Layer(read_attention(config, rope=None), NoFeedForward(), norm)
    if kind == "mlp":
        return Layer(NoMixer(), _read_mlp(config, "intermediate_size"), norm)
    return Layer(NoMixer(), _read_moe(config), norm)


def _read_mlp(config: Config, key: str) -> Mlp:
    activation = config.activation("relu2", "mlp_hidden_act")
    bias = config.flag("mlp_bias", False)
    return Mlp(config.positive(key), activation, gated=False, bias=bias)


def _read_moe(config: Config) -> Moe:
    activation = config.activation("relu2", "mlp_hidden_act")
    router = read_router(
        config,
        scoring="sigmoid",
        score_correction_bias=True,
        norm_topk_prob=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        n_group=config.positive("n_group", 1),
        topk_group=config.positive("topk_group", 1),
        group_score_experts=2,
    )
    return Moe(
        router,
        Mlp(config.positive("moe_intermediate_size"), activation, gated=False),
        shared=_read_mlp(config, "moe_shared_expert_intermediate_size"),
        latent=config.positive("moe_latent_size") if config.has("moe_latent_size") else None,
        latent_bias=config.flag("mlp_bias", False),
    )


FAMILY = Family(
    "nemotron_h",
    read,
    gguf_arch="nemotron_h",
    other_gguf_archs=("nemotron_h_moe",),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 21504,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "n_routed_experts": 8,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
    },
    safetensors={
        "embedding": "backbone.embeddings",
        "norm": "backbone.norm_f",
        "layer": "backbone.layers.{layer}.",
        "mixer.norm": "norm",
        "mixer.q": "mixer.q_proj",
        "mixer.k": "mixer.k_proj",
        "mixer.v": "mixer.v_proj",
        "mixer.o": "mixer.o_proj",
        "mixer.in": "mixer.in_proj",
        "mixer.conv": "mixer.conv1d",
        "mixer.step_bias": "mixer.dt_bias",
        "mixer.decay": "mixer.A_log",
        "mixer.skip": "mixer.D",
        "mixer.head_norm": "mixer.norm",
        "mixer.out": "mixer.out_proj",
        "ffn.norm": "norm",
        "ffn.up": "mixer.up_proj",
        "ffn.down": "mixer.down_proj",
        "ffn.router": "mixer.gate",
        "ffn.router.correction": "mixer.gate.e_score_correction_bias",
        "ffn.latent_in": "mixer.fc1_latent_proj",
        "ffn.latent_out": "mixer.fc2_latent_proj",
        "ffn.experts.{expert}.up": "mixer.experts.{expert}.up_proj",
        "ffn.experts.{expert}.down": "mixer.experts.{expert}.down_proj",
        "ffn.shared.up": "mixer.shared_experts.up_proj",
        "ffn.shared.down": "mixer.shared_experts.down_proj",
    },
    gguf={
        **GGUF_MAMBA_NAMES,
        "ffn.norm": "attn_norm",
        "ffn.latent_in": "ffn_latent_down",
        "ffn.latent_out": "ffn_latent_up",
    },
    gguf_keys={
        **deepseek_v2.GGUF_KEYS,
        **GGUF_MAMBA_KEYS,
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "moe_latent_size": "moe_latent_size",
    },
    gguf_defaults={"time_step_min": 0.0},
    # The multi-token prediction layers.
    ignored=("mtp.",),
)
