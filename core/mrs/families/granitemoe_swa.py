"""Granite MoE SWA: Granite SWA with the experts of Granite 3 MoE."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families import granitemoe
from mrs.families.granite_swa import read_windowed_granite


def read(config: Config) -> ModelSpec:
    return read_windowed_granite(config, "granitemoe_swa", granitemoe.read_wide_moe(config))


FAMILY = Family(
    "granitemoe_swa",
    read,
    defaults={**granitemoe.DEFAULTS, "sliding_window": 128},
    safetensors=granitemoe.NAMES,
)
