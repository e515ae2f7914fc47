"""Tiny models that tests adapt, and the same models with adapters in their weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from case import Case
from running import Conversation, Loaded
from safetensors.torch import load_file, save_file
from saved_models import SavedModel, save_model
from torch import Tensor

from mrs.request import ModelSource
from support.lora_files import Adapter

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LLAMA = Case("llama", "gqa", {}, "llama")
TIED = Case("llama", "tied", {"tie_word_embeddings": True}, "llama")
PHI3 = Case("phi3", "fused", {}, "phi3")
GEMMA = Case("gemma", "plus-one", {"head_dim": 16}, None)


@dataclass(frozen=True)
class Base:
    saved: SavedModel
    weights: dict[str, Tensor]

    @property
    def folder(self) -> Path:
        return self.saved.folder


def make_base(case: Case, folder: Path) -> Base:
    saved = save_model(case, folder)
    return Base(saved, load_file(saved.folder / "model.safetensors"))


def source(folder: Path) -> ModelSource:
    return ModelSource(str(folder), "safetensors")


def write_merged(base: Base, folder: Path, *adapters: Adapter) -> Path:
    """The model with the adapters in its weights, as ordinary files."""
    weights: dict[str, Tensor] = dict(base.weights)
    for adapter in adapters:
        weights = adapter.merged(weights)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((base.folder / "config.json").read_text())
    if "lm_head.weight" in weights:
        config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.float() for name, each in weights.items()}, folder / "model.safetensors")
    return folder


def logits(loaded: Loaded) -> Tensor:
    return Conversation(loaded.decoder).feed(PROMPT)
