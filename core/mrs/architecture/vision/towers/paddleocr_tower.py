"""The vision tower of PaddleOCR-VL: SigLIP's layers with the rope of Qwen2-VL's."""

from __future__ import annotations

from math import isqrt
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.towers.clip_tower import read_encoder_layer
from mrs.architecture.vision.towers.qwen_projector import image_limits
from mrs.architecture.vision.towers.qwen_tower import QwenTower, read_rope_base
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP, SIGLIP_DEFAULTS
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.vision_family import GgufProjector
from mrs.architecture.vision_spec import Patches
from mrs.errors import NotReadable

TOWER = "model.visual."
#: Parts of the published files that nothing uses.
IGNORED = tuple(
    f"{start}vision_model.{unused}"
    for start in (TOWER, "visual.")
    for unused in ("head.", "embeddings.packing_position_embedding.")
)
TOKEN = "<|IMAGE_PLACEHOLDER|>"
#: Defaults of transformers.
PADDLEOCR_DEFAULTS = {
    **SIGLIP_DEFAULTS,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "spatial_merge_size": 2,
}
LEAST_PIXELS, MOST_PIXELS = 384**2, 1536**2


def read_paddleocr_tower(tower: Config) -> QwenTower:
    tower.allow_only("num_channels", 3)
    layer, patch = read_encoder_layer(tower), tower.positive("patch_size")
    side = tower.positive("image_size") // patch
    if not side:
        raise NotReadable("image_size is less than a patch", where=tower.where)
    hidden_size = tower.positive("hidden_size")
    head_dim = tower.head_dim(hidden_size, tower.positive("num_attention_heads"))
    require_two_axes(head_dim, tower.where)
    return QwenTower(
        hidden_size,
        Patches(patch, bias=True),
        (layer,) * layer_count(tower),
        read_rope_base(tower),
        position_side=side,
        interpolation="edges",
        norm=layer.norm,
    )


def read_merger(tower: QwenTower, merge: int) -> PatchMerger:
    return PatchMerger(tower.hidden_size, merge, Norm(1e-5, "layer", bias=True))


def _tower(clip: Config) -> dict[str, Any]:
    side = isqrt(clip.positive("position_rows"))
    return {
        "image_size": side * clip.positive("patch_size"),
        "spatial_merge_size": clip.positive("projector.scale_factor", 2),
    }


#: As llama.cpp's converter writes it.
PADDLEOCR = GgufProjector(
    "paddleocr",
    {
        **GGUF_SIGLIP,
        "projector.norm": "mm.input_norm",
        "projector.up": "mm.1",
        "projector.down": "mm.2",
    },
    TOKEN,
    image_limits(LEAST_PIXELS, MOST_PIXELS),
    _tower,
)
