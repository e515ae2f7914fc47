"""Read modules with fixed factors: an MLP, and attention in parallel with Mamba 2."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.parallel_mixers_spec import ParallelMixers
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import biased_attention, read_heads, read_mlp
from mrs.architecture.readers.mamba2_reader import read_mamba2


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
