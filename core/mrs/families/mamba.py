"""Mamba: layers of a selective state space each, and nothing else."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.mamba2 import CONTEXT_TOKENS
from mrs.layers.empty.spec import NoFeedForward
from mrs.layers.layer import Layer
from mrs.layers.mamba.config import MAMBA_GGUF_KEYS, read_mamba
from mrs.layers.mamba.spec import GGUF_MAMBA, mamba_names
from mrs.layers.mamba2.spec import BACKBONE
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm

#: Keys of the files, and what other families call them.
KEYS = {
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "time_step_rank": "mamba_dt_rank",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
}


def read(config: Config) -> ModelSpec:
    return read_mambas(config, "mamba")


def read_mambas(config: Config, family: str) -> ModelSpec:
    """Falcon Mamba has a norm in the mixer, whose epsilon GGUF files lack."""
    config = config.renamed(KEYS)
    if config.integer("intermediate_size", 0):  # 0 in GGUF files
        config = config.renamed({"intermediate_size": "mamba_d_inner"})
    norm, inner = read_norm(config, "layer_norm_epsilon", default=1e-5), None
    if config.flag("has_mixer_norm", False):
        inner = Norm(config.number("mixer_rms_eps", norm.eps), learned=False)
    layer = Layer(read_mamba(config, norm=inner), NoFeedForward(), norm)
    return decoder(config, family, [layer] * layer_count(config), norm)


DEFAULTS = {"max_position_embeddings": CONTEXT_TOKENS, "tie_word_embeddings": True}
NAMES = {**BACKBONE, **mamba_names("mixer")}

FAMILY = Family(
    "mamba",
    read,
    gguf_arch="mamba",
    defaults=DEFAULTS,
    safetensors=NAMES,
    gguf=GGUF_MAMBA,
    gguf_keys={
        **MAMBA_GGUF_KEYS,
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "has_mixer_norm": "ssm.dt_b_c_rms",
    },
)
