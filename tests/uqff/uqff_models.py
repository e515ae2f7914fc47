"""Tiny models in UQFF, and the same with the values that these mean in float32."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import tiny_model, write
from layer_kinds import Pack
from safetensors.torch import save_file
from torch import Tensor

from mrs.request import ModelSource

VERSION = {"major": 1, "minor": 2, "patch": 0}


@dataclass(frozen=True)
class Made:
    """A folder in UQFF, and one of the same values in float32."""

    packed: Path
    dense: Path


def make_model(pack: Pack, family: str, folder: Path) -> Made:
    config, weights = tiny_model(family, folder.parent)
    rng = np.random.default_rng(zlib.crc32(folder.name.encode()))
    layers: dict[str, Tensor] = {}
    residual: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not name.endswith(("_proj.weight", "lm_head.weight", "embed_tokens.weight")):
            residual[name] = dense[name] = weight
            continue
        tensors, values = pack(rng, *weight.shape)
        dense[name] = torch.from_numpy(values).float()
        layers |= {name + suffix: each for suffix, each in tensors.items()}
    made = Made(folder / "packed", folder / "dense")
    write_uqff(made.packed, config, layers, residual)
    write(made.dense, config, dense)
    return made


def write_uqff(
    folder: Path,
    config: dict[str, Any],
    layers: dict[str, Tensor],
    residual: dict[str, Tensor],
    shards: int = 1,
) -> None:
    """A model's folder; the layers are dealt out to shards, of which the first has the version."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(residual, folder / "residual.safetensors")
    names = sorted(layers)
    for index in range(shards):
        own = {name: layers[name].contiguous() for name in names[index::shards]}
        save_file({**own, **(version() if index == 0 else {})}, folder / f"m-{index}.uqff")


def version(**changed: int) -> dict[str, Tensor]:
    return {
        f"uqff.version.{part}": torch.tensor(value, dtype=torch.uint32)
        for part, value in {**VERSION, **changed}.items()
    }


def source(folder: Path, *names: str) -> ModelSource:
    return ModelSource(str(folder), "safetensors", uqff=names or ("m-0.uqff",))
