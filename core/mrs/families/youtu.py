"""Youtu-LLM: DeepSeek V3's attention, and an MLP in every layer."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.deepseek_v2 import read_deepseek
from mrs.layers.latent_attention.config import MLA_DEFAULTS


def read(config: Config) -> ModelSpec:
    return read_deepseek(config, "youtu")


FAMILY = Family(
    "youtu",
    read,
    # Its GGUF files are those of `deepseek_v2`.
    aliases=("youtu_llm",),
    defaults={**MLA_DEFAULTS, "max_position_embeddings": 131_072, "tie_word_embeddings": True},
)
