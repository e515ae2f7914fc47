"""Falcon Mamba: Mamba with norms, which have no weights, inside of its mixers."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.mamba import DEFAULTS, NAMES, read_mambas


def read(config: Config) -> ModelSpec:
    return read_mambas(config, "falcon_mamba")


# GGUF files are of Mamba's architecture, whose family reads them.
FAMILY = Family(
    "falcon_mamba",
    read,
    defaults={**DEFAULTS, "has_mixer_norm": True, "mixer_rms_eps": 1e-6},
    safetensors=NAMES,
)
