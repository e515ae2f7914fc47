"""Pixtral's tower and the merging projector as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from gguf_tensors import Tensors, new_projector, permuted, renamed, write


def write_pixtral(
    path: Path,
    vision: dict[str, Any],
    tensors: Tensors,
    merged: int,
    kind: str = gguf.VisionProjectorType.PIXTRAL,
) -> None:
    """The tensors begin with `vision_tower.` and `multi_modal_projector.`."""
    named = {**vision, "layer_norm_eps": 1e-5}
    writer = new_projector(path, kind, named)
    writer.add_vision_spatial_merge_size(merged)
    numbers = max(vision["num_hidden_layers"], 3)  # the map knows the projector's by these, too
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, numbers)
    found = renamed(tensors, "vision_tower.", "vision_tower.", names)
    found |= renamed(tensors, "multi_modal_projector.", "multi_modal_projector.", names)
    for name in found:
        if ".attn_q." in name or ".attn_k." in name:
            found[name] = permuted(found[name], vision["num_attention_heads"])
    if kind == gguf.VisionProjectorType.PIXTRAL:
        found["v.token_embd.img_break"] = torch.zeros(64)
    write(writer, found)
