"""PaddleOCR-VL: ERNIE 4.5 with the rope and nearly the images of Qwen2-VL."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.dynamic_layout import read_dynamic
from mrs.architecture.vision.image_layouts import CLIP_IMAGES
from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.towers.clip_tower import read_encoder_layer
from mrs.architecture.vision.towers.qwen_mmproj import image_limits
from mrs.architecture.vision.towers.qwen_tower import QwenTower, read_rope_base, require_sections
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP, SIGLIP_DEFAULTS, siglip_names
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Patches, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.norm.spec import Norm

TOWER = "model.visual."
#: Parts of the published files that nothing uses.
UNREAD = tuple(
    f"{start}vision_model.{unused}"
    for start in (TOWER, "visual.")
    for unused in ("head.", "embeddings.packing_position_embedding.")
)
TOKEN = "<|IMAGE_PLACEHOLDER|>"
#: Defaults of transformers.
TOWER_DEFAULTS = {
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
SPELLINGS = {TOWER: "visual.", "model.projector.": "mlp_AR.", "model.language_model.": "model."}
#: For the language model, an ERNIE 4.5 whose rotary pairs are not of adjacent values.
TEXT_DEFAULTS = {
    "vocab_size": 103_424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "max_position_embeddings": 131_072,
    "rope_interleave": False,
}


def read_tower(tower: Config) -> QwenTower:
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


def _gguf_tower(clip: Config) -> dict[str, Any]:
    side = isqrt(clip.positive("position_rows"))
    return {
        "image_size": side * clip.positive("patch_size"),
        "spatial_merge_size": clip.positive("projector.scale_factor", 2),
    }


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "paddleocr",
    {
        **GGUF_SIGLIP,
        "projector.norm": "mm.input_norm",
        "projector.up": "mm.1",
        "projector.down": "mm.2",
    },
    TOKEN,
    image_limits(LEAST_PIXELS, MOST_PIXELS),
    _gguf_tower,
)


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    require_sections(text, model.where)
    images.allow_only("temporal_patch_size", 1)
    tower = read_tower(configs.tower)
    merge = configs.tower.positive("spatial_merge_size")
    return Vision(
        tower,
        read_merger(tower, merge),
        replace(read_dynamic(images, tower.patches.size, merge, TOKEN), grown="in_turn"),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 100_295),
        positions="multimodal",
    )


FAMILY = VisionFamily(
    "paddleocr_vl",
    read,
    names={
        **siglip_names(f"{TOWER}vision_model."),
        "projector.norm": "model.projector.pre_norm",
        "projector.up": "model.projector.linear_1",
        "projector.down": "model.projector.linear_2",
    },
    text="ernie4_5",
    text_types={"paddleocr_vl": "ernie4_5", "paddleocr_vl_text": "ernie4_5"},
    text_start="model.language_model.",
    head="lm_head",
    text_defaults=TEXT_DEFAULTS,
    tower_defaults=TOWER_DEFAULTS,
    image_defaults={
        **CLIP_IMAGES,
        "size": {"shortest_edge": LEAST_PIXELS, "longest_edge": MOST_PIXELS},
    },
    spellings=SPELLINGS,
    unread=UNREAD,
    gguf=GGUF,
)
