"""The language model of Gemma 4 12B, whose images and sounds enter without towers."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.gemma4_text import DEFAULTS, NAMES, read_gemma4


def read(config: Config) -> ModelSpec:
    return read_gemma4(config, "gemma4_unified_text")


FAMILY = Family(
    "gemma4_unified_text",
    read,
    aliases=("gemma4_unified",),
    defaults={**DEFAULTS, "sliding_window": 1024},
    safetensors=NAMES,
)
