"""Tiny models whose projections are quantized, and the same with the values that these mean."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packers import Scheme
from safetensors.torch import load_file, save_file
from torch import Tensor

#: phi3 stores q, k and v in one tensor, and gate and up; qwen2 has biases.
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder of the quantized model, and one of the same values in float32."""

    packed: Path
    dense: Path


def make_checkpoint(scheme: Scheme, family: str, folder: Path) -> Checkpoint:
    config, weights = tiny_model(family, folder.parent)
    rng = np.random.default_rng(zlib.crc32(f"{scheme.id} {family}".encode()))
    packed: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            packed[name] = dense[name] = weight
            continue
        tensors, values = scheme.pack(rng, *weight.shape)
        dense[name] = torch.from_numpy(values).float()
        base = name.removesuffix(".weight")
        packed |= {base + suffix: each for suffix, each in tensors.items()}
    key = "quantization_config" if "quant_method" in scheme.config else "quantization"
    found = Checkpoint(folder / "packed", folder / "dense")
    write(found.packed, {**config, key: scheme.config}, packed)
    write(found.dense, config, dense)
    return found


@cache
def tiny_model(family: str, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and random weights by transformers, of which only those of norms and so on count."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config)
    made = folder / f"tiny-{family}"
    model.save_pretrained(made)
    return json.loads((made / "config.json").read_text()), load_file(made / "model.safetensors")


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
