"""Phi-3 and Phi-3.5 Vision: CLIP features of crops of a large image and of the whole image.

Configs do not describe the tower, which is always CLIP ViT-L/14 for 336 pixels.
"""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import CLIP_MEAN, CLIP_STD
from mrs.architecture.vision.layouts.crops import MERGED, read_crops
from mrs.architecture.vision.shared_projectors import CropsProjector, MlpProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_LARGE,
    clip_ignored,
    clip_names,
    read_clip,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

START = "model.vision_embed_tokens."
#: The id of `<|image|>` in the published tokenizers; configs do not have it.
IMAGE_TOKEN_ID = 32_044


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_clip(configs.tower, (-2,))
    return Vision(
        tower,
        CropsProjector(MlpProjector(tower.hidden_size * MERGED**2)),
        read_crops(configs.images, tower, "<|image|>"),
        placeholder="<|image_{n}|>",
        image_token_id=configs.model.integer("image_token_id", IMAGE_TOKEN_ID),
    )


FAMILY = VisionFamily(
    "phi3_v",
    read,
    names={
        **clip_names(f"{START}img_processor.vision_model."),
        "projector.up": f"{START}img_projection.0",
        "projector.down": f"{START}img_projection.2",
        "newline": f"{START}sub_GN",
        "between": f"{START}glb_GN",
    },
    text="phi3",
    text_start="model.",
    head="lm_head",
    tower_key="img_processor",
    tower_defaults=CLIP_LARGE,
    image_defaults={"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "num_crops": 16},
    ignored=(*clip_ignored(f"{START}img_processor."), f"{START}wte."),
)
