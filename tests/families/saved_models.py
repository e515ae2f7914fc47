"""Tiny random models of the families as files, without the outputs of a reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from case import Case
from transformers_reference import new_model, save


@dataclass(frozen=True)
class SavedModel:
    case: Case
    folder: Path
    config: transformers.PreTrainedConfig


def save_model(case: Case, folder: Path) -> SavedModel:
    """Write config and weights of a case as safetensors."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    save(new_model(case, config).float(), folder)
    return SavedModel(case, folder, config)
