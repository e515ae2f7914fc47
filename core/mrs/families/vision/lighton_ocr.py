"""LightOn OCR: Mistral 3's tower and projector before Qwen 3, without marks between image rows."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import CLIP_IMAGES, read_edge
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.families.vision.mistral3 import (
    GGUF,
    TOWER_DEFAULTS,
    MergingProjector,
    pixtral_names,
    read_layout,
    read_tower,
)

TOKEN = "<|image_pad|>"
_TOWER = "model.vision_encoder."


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    merged = model.positive("spatial_merge_size", 2)
    tower = read_tower(configs.tower, (-1,))
    patch = tower.patches.size
    layout = read_layout(
        images, patch, merged, step=_read_step(images, patch), token=TOKEN, row_end="", image_end=""
    )
    assert text.norm is not None
    return Vision(
        tower,
        MergingProjector(tower.hidden_size, patch, merged, text.norm, "gelu", bias=False),
        layout,
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 151_655),
    )


def _read_step(images: Config, patch: int) -> int:
    """The number of pixels of which edges are multiples; 0 for that of a merged square."""
    if not images.has("patch_size"):
        return 0
    sides = images.values["patch_size"]
    if isinstance(sides, dict):
        sides = [sides.get("height"), sides.get("width")]
    step = read_edge(images.changed({"patch_size": sides}), "patch_size")
    if step % patch:
        raise Unsupported(
            f"patch_size = {step} of images is not a multiple of the tower's, {patch}",
            where=images.where,
        )
    return step


FAMILY = VisionFamily(
    "lighton_ocr",
    read,
    names=pixtral_names(_TOWER, "model.vision_projection."),
    text="qwen3",
    text_start="model.language_model.",
    head="lm_head",
    defaults={"tie_word_embeddings": True},
    text_defaults={
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
    },
    tower_defaults={
        **TOWER_DEFAULTS,
        "head_dim": 64,
        "patch_size": 14,
        "hidden_act": "silu",
    },
    image_defaults={**CLIP_IMAGES, "size": {"longest_edge": 1024}},
    unread=(f"{_TOWER}patch_positional_embedding.",),
    gguf=replace(GGUF, projector="lightonocr", token=TOKEN, texts=("qwen3",), unread=()),
)
