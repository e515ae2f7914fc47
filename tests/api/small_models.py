"""Small models that a `Runner` can load, with the demo model's tokenizer and template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import mrs.demo
from mrs.architecture.config import Config
from mrs.architecture.family_registry import families
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS

DEMO = Path(mrs.demo.__file__).parent / "model"
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def write_random_model(folder: Path, family_name: str, changes: Mapping[str, Any]) -> Path:
    """A model of random weights of one family; returns `folder`."""
    demo = json.loads((DEMO / "config.json").read_text())
    config = {**_SIZES, "vocab_size": demo["vocab_size"], "model_type": family_name, **changes}
    family = families()[family_name]
    spec = family.read(Config({**family.defaults, **config}, family_name))
    chance = torch.Generator().manual_seed(0)
    rows: dict[str, tuple[int, ...]] = {}
    for parameter in list_parameters(spec, {**SAFETENSORS, **family.safetensors}):
        for piece in parameter.pieces:
            first = parameter.shape[0] if piece.rows is None else piece.rows.stop
            first = max(first, rows.get(piece.tensor, (0,))[0])
            rows[piece.tensor] = (first, *parameter.shape[1:])
    tensors = {name: 0.2 * torch.randn(shape, generator=chance) for name, shape in rows.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)
    return folder
