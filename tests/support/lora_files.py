"""LoRA adapters in PEFT's form with random values, and what they do to a model's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass
class Adapter:
    """An adapter of the modules whose weights are given, written to a folder by `write`."""

    weights: Weights
    targets: Sequence[str]
    rank: int = 4
    alpha: float = 6.0
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    whole: Weights = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = torch.Generator().manual_seed(self.seed)
        for name, weight in self.weights.items():
            module = name.removesuffix(".weight")
            if not module.endswith(tuple(self.targets)) or not name.endswith(".weight"):
                continue
            rank = self.rank_of(module)
            a = torch.randn(rank, weight.shape[1], generator=chance) * weight.shape[1] ** -0.5
            b = torch.randn(weight.shape[0], rank, generator=chance) * 0.3
            self.tensors[f"{module}.lora_A.weight"] = a
            self.tensors[f"{module}.lora_B.weight"] = b
            if self.settings.get("use_dora"):
                norms = weight.norm(dim=1)
                self.tensors[f"{module}.lora_magnitude_vector"] = norms * (
                    1 + 0.2 * torch.rand(len(norms), generator=chance)
                )
        self.tensors |= dict(self.whole)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "peft_type": "LORA",
            "base_model_name_or_path": "none",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": list(self.targets),
            "bias": "none",
            **self.settings,
        }

    def rank_of(self, module: str) -> int:
        ranks = self.settings.get("rank_pattern", {})
        return next((rank for end, rank in ranks.items() if module.endswith(end)), self.rank)

    def scale_of(self, module: str) -> float:
        alphas = self.settings.get("alpha_pattern", {})
        alpha = next((value for end, value in alphas.items() if module.endswith(end)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (rank**0.5 if self.settings.get("use_rslora") else rank)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config))
        tensors = {f"base_model.model.{name}": each for name, each in self.tensors.items()}
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    def merged(self, weights: Weights | None = None) -> dict[str, Tensor]:
        """The weights with this adapter, computed in float64."""
        found = {name: each.double() for name, each in (weights or self.weights).items()}
        for name in self.tensors:
            module, mark, _ = name.partition(".lora_A.")
            if not mark:
                continue
            a, b = (self.tensors[f"{module}.lora_{part}.weight"].double() for part in "AB")
            weight = found[f"{module}.weight"] + self.scale_of(module) * b @ a
            magnitude = self.tensors.get(f"{module}.lora_magnitude_vector")
            if magnitude is not None:
                weight *= (magnitude.double() / weight.norm(dim=1))[:, None]
            found[f"{module}.weight"] = weight
        found |= {name: each.double() for name, each in self.whole.items()}
        return found
