"""Mamba 2: layers of a selective state space each, and nothing else."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.empty.spec import NoFeedForward
from mrs.layers.layer import Layer
from mrs.layers.mamba2.config import MAMBA2_GGUF_KEYS, read_mamba2
from mrs.layers.mamba2.spec import BACKBONE, GGUF_MAMBA2
from mrs.layers.norm.config import read_norm

#: Keys of the files, and what other families call them.
KEYS = {
    "num_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "state_size": "mamba_d_state",
    "expand": "mamba_expand",
}


def read(config: Config) -> ModelSpec:
    config = config.renamed(KEYS)
    config.allow_only("hidden_act", "silu", "swish")
    norm = read_norm(config, "layer_norm_epsilon", default=1e-5)
    layer = Layer(read_mamba2(config, norm=norm), NoFeedForward(), norm)
    return decoder(config, "mamba2", [layer] * layer_count(config), norm)


#: States have no limit; GGUF files say this.
CONTEXT_TOKENS = 2**20

FAMILY = Family(
    "mamba2",
    read,
    gguf_arch="mamba2",
    defaults={
        "max_position_embeddings": CONTEXT_TOKENS,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
    },
    safetensors=BACKBONE,
    gguf=GGUF_MAMBA2,
    gguf_keys={**MAMBA2_GGUF_KEYS, "layer_norm_epsilon": "attention.layer_norm_rms_epsilon"},
)
