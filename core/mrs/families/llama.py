"""Llama 1 to 3.3, and models with the same architecture."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import MTP
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.mixtral import read_moe
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import expert_count
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    attention = biased_attention(config)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    # The architecture of Mixtral in GGUF files is `llama` too.
    layer = Layer(attention, read_moe(config) if expert_count(config) else mlp, norm)
    return decoder(config, "llama", [layer] * layer_count(config), norm)


FAMILY = Family(
    "llama",
    read,
    gguf_arch="llama",
    gguf_rope_interleaved=True,
    head=MTP,  # of the trainer of draft heads, which names them as Qwen does
    ignored=("mtp.",),
)
