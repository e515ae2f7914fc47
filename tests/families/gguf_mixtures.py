"""What llama.cpp's converter writes of mixtures of experts."""

from __future__ import annotations

import re
from typing import Any

import gguf
import torch
from torch import Tensor

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def write_mixture(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    keys = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((config[key] for key in keys if config.get(key)), None)
    if experts is None:
        return
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if arch != "llama":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def stack_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors, those of the experts of a layer stacked in their order."""
    stacked: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            stacked[name] = tensor
    for name, of in experts.items():
        stacked[name] = torch.stack([of[number] for number in range(len(of))])
    return stacked
