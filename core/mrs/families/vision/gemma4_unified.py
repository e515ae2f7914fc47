"""Gemma 4 12B: squares of pixels are projected to rows, without a tower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.slots import Slot, norm_slot
from mrs.architecture.vision.towers.gemma4_tower import ScaledPoolProjector
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import Tower, Vision
from mrs.families.vision.gemma4 import (
    TOKEN,
    attends_both_ways,
    read_area,
    read_normalization,
    require_positions,
)

#: The norms, whose epsilon configs do not have.
NORM = Norm(1e-5, "layer", bias=True)


@dataclass(frozen=True)
class SquaresTower(Tower):
    """norm(norm(linear(norm(pixels))) + positions) of each square of `square` x `square` pixels.

    A column and a row have a learned embedding each, of which there are `positions`.
    """

    hidden_size: int
    square: int
    positions: int
    layers: tuple[Layer, ...] = ()


@vision_slots.register
def _(tower: SquaresTower, hidden_size: int) -> Iterator[Slot]:
    pixels, hidden = 3 * tower.square**2, tower.hidden_size
    yield norm_slot("pre_norm", pixels, NORM)
    yield Slot("patches", (hidden, pixels), "dense", bias=True)
    yield norm_slot("norm", hidden, NORM)
    yield Slot("positions", (tower.positions, 2, hidden), "dense", suffix="")
    yield norm_slot("post_norm", hidden, NORM)


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    layout = replace(read_area(configs, *read_normalization(configs.images)), pool=1)
    tower = SquaresTower(
        config.positive("mm_embed_dim"), layout.square, config.positive("mm_posemb_size")
    )
    require_positions(layout.most_rows, tower.positions, config.where)
    return Vision(
        tower,
        ScaledPoolProjector(tower.hidden_size, read_norm(config)),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 258_880),
        is_bidirectional=attends_both_ways(configs.model, default="vision"),
    )


EMBEDDER, PROJECTION = "model.vision_embedder.", "model.embed_vision.embedding_projection"
FAMILY = VisionFamily(
    "gemma4_unified",
    read,
    names={
        "pre_norm": f"{EMBEDDER}patch_ln1",
        "patches": f"{EMBEDDER}patch_dense",
        "norm": f"{EMBEDDER}patch_ln2",
        "positions": f"{EMBEDDER}pos_embedding",
        "post_norm": f"{EMBEDDER}pos_norm",
        "projector": PROJECTION,
        "layer": "",
    },
    text="gemma4_unified_text",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults={
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 3840,
        "mm_posemb_size": 1120,
    },
    image_defaults={"max_soft_tokens": 280, "resample": 3},
    # The names in transformers' own classes.
    spellings={
        EMBEDDER: "model.embed_vision.",
        PROJECTION: "model.embed_vision.multimodal_embedder.embedding_projection",
    },
    ignored=("model.embed_audio.",),
)
