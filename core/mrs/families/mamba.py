"""Mamba: layers of a selective state space each, and nothing else."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import NoFeedForward
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mamba2_names import BACKBONE
from mrs.architecture.names.mamba_names import GGUF_MAMBA, mamba_names
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_norm
from mrs.architecture.readers.mamba_reader import MAMBA_GGUF_KEYS, read_mamba
from mrs.families.mamba2 import CONTEXT_TOKENS

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
