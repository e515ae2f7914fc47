"""Falcon-H1: attention and Mamba 2 in parallel in each layer, and fixed factors everywhere."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention, read_heads
from mrs.layers.layer import Layer
from mrs.layers.mamba2.config import MAMBA2_GGUF_KEYS, read_mamba2
from mrs.layers.mamba2.spec import GGUF_MAMBA2, HYBRID_LAYERS, Mamba2
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.parallel_mixers.spec import ParallelMixers


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    layer = Layer(read_scaled_mixers(config, norm), read_scaled_mlp(config), norm)
    return decoder(
        config,
        "falcon_h1",
        [layer] * layer_count(config),
        norm,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=config.number("lm_head_multiplier", 1.0),
    )


def read_scaled_mixers(config: Config, norm: Norm) -> ParallelMixers:
    """Attention and Mamba 2, which may have this norm."""
    # A factor of the keys is one of the scores.
    scale = read_heads(config)[2] ** -0.5 * config.number("key_multiplier", 1.0)
    return ParallelMixers(
        biased_attention(config, scale=scale),
        _read_mamba2(config, norm),
        attention_in=config.number("attention_in_multiplier", 1.0),
        attention_out=config.number("attention_out_multiplier", 1.0),
        state_in=config.number("ssm_in_multiplier", 1.0),
        state_out=config.number("ssm_out_multiplier", 1.0),
    )


def _read_mamba2(config: Config, norm: Norm) -> Mamba2:
    has_norm = config.flag("mamba_rms_norm", False)
    key = "ssm_multipliers"
    factors = config.numbers(key, 5) if config.has(key) else ()
    return read_mamba2(
        config,
        norm=norm if has_norm else None,
        norm_before_gate=has_norm and config.flag("mamba_norm_before_gate", True),
        multipliers=factors if any(factor != 1.0 for factor in factors) else (),
        out_bias=config.flag("projectors_bias", False),
    )


def read_scaled_mlp(config: Config) -> Mlp:
    """An MLP with factors of its gate and of its output."""
    key = "mlp_multipliers"
    gate_scale, out_scale = config.numbers(key, 2) if config.has(key) else (1.0, 1.0)
    bias = config.flag("mlp_bias", False)
    return read_mlp(config, bias=bias, gate_scale=gate_scale, out_scale=out_scale)


FAMILY = Family(
    "falcon_h1",
    read,
    gguf_arch="falcon-h1",
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    },
    safetensors=HYBRID_LAYERS,
    # GGUF files have all factors in their weights.
    gguf={**GGUF_MAMBA2, "ffn.norm.weight": "ffn_norm"},
    gguf_keys=MAMBA2_GGUF_KEYS,
    gguf_defaults={"mamba_norm_before_gate": False},
)
