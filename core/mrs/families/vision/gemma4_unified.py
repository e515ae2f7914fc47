"""Gemma 4 12B: squares of pixels are projected to rows, without a tower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import Tower, Vision
from mrs.config.config import Config
from mrs.families.vision.gemma4 import (
    GGUF_IGNORED,
    TOKEN,
    ScaledPoolProjector,
    gemma4_family,
    gemma4_vision,
    gguf_configs,
    gguf_pooling,
    read_area,
    read_normalization,
    require_positions,
    stored_in_gguf,
)
from mrs.layers.layer import Layer
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

EMBEDDER = "model.vision_embedder."
PROJECTION = "model.embed_vision.embedding_projection"
#: Slot -> module name.
NAMES = {
    "pre_norm": f"{EMBEDDER}patch_ln1",
    "patches": f"{EMBEDDER}patch_dense",
    "norm": f"{EMBEDDER}patch_ln2",
    "positions": f"{EMBEDDER}pos_embedding",
    "post_norm": f"{EMBEDDER}pos_norm",
    "layer": "",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
}
#: The norms, whose epsilon configs do not have.
NORM = Norm(1e-5, "layer", bias=True)


@dataclass(frozen=True)
class SquaresTower(Tower):
    """norm(norm(linear(norm(pixels))) + positions) of each square of `square` x `square` pixels.

    Columns and rows have learned embeddings, `positions` of each. In mmproj files
    the pixels of a square are ordered by channel, and all columns precede all rows.
    """

    hidden_size: int
    square: int
    positions: int
    layers: tuple[Layer, ...] = ()
    channels_first: bool = False


@vision_slots.register
def _(tower: SquaresTower, hidden_size: int) -> Iterator[Slot]:
    pixels, hidden = 3 * tower.square**2, tower.hidden_size
    yield from norm_slots("pre_norm", pixels, NORM)
    yield Slot("patches", (hidden, pixels), "dense", bias=True)
    yield from norm_slots("norm", hidden, NORM)
    axes = (2, tower.positions) if tower.channels_first else (tower.positions, 2)
    yield Slot("positions", (*axes, hidden), "dense", suffix="")
    yield from norm_slots("post_norm", hidden, NORM)


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    layout = replace(read_area(configs, *read_normalization(configs.images)), pool=1)
    tower = SquaresTower(
        config.positive("mm_embed_dim"), layout.square, config.positive("mm_posemb_size")
    )
    require_positions(layout.most_rows, tower.positions, config.where)
    projector = ScaledPoolProjector(tower.hidden_size, read_norm(config))
    return gemma4_vision(configs, tower, projector, layout, attention="vision")


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    return {
        **gguf_pooling(clip),
        "mm_embed_dim": clip.positive("embedding_length"),
        "mm_posemb_size": clip.positive("position_rows"),
    }


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "gemma4uv",
    {
        "layer": "v.blk.{layer}.",
        "pre_norm": "v.patch_norm.1",
        "patches": "v.patch_embd",
        "norm": "v.patch_norm.2",
        "positions": "v.position_embd.weight",
        "post_norm": "v.patch_norm.3",
        "projector": "mm.input_projection",
    },
    TOKEN,
    gguf_configs,
    _gguf_tower,
    stored_in_gguf,
    texts=("gemma4_text",),
    ignored=GGUF_IGNORED,
)


FAMILY = gemma4_family(
    "gemma4_unified",
    read,
    NAMES,
    text="gemma4_unified_text",
    tower_defaults=TOWER_DEFAULTS,
    # The names in transformers' own classes.
    spellings={
        EMBEDDER: "model.embed_vision.",
        PROJECTION: "model.embed_vision.multimodal_embedder.embedding_projection",
    },
    gguf=GGUF,
)
