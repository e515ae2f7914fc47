"""Kimi Linear: three layers of Kimi Delta Attention per layer of MLA, which has no rope."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.kda_names import GGUF_KDA, KDA
from mrs.architecture.names.mlp_names import SPARSE_BLOCKS
from mrs.architecture.readers.grouped_moe_reader import GROUPED_MOE_GGUF_KEYS, read_grouped_moe
from mrs.architecture.readers.kda_reader import KDA_DEFAULTS, KDA_GGUF_KEYS, read_kda_mixers
from mrs.architecture.readers.layer_reader import decoder, read_mlp, read_norm, stack_layers
from mrs.architecture.readers.mla_reader import MLA_DEFAULTS, MLA_GGUF_KEYS
from mrs.architecture.readers.moe_reader import mixed_layers

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
    safetensors={**SPARSE_BLOCKS, **KDA},
    gguf=GGUF_KDA,
    gguf_keys={**MLA_GGUF_KEYS, **GROUPED_MOE_GGUF_KEYS, **KDA_GGUF_KEYS},
    gguf_defaults={"norm_topk_prob": True},
)
