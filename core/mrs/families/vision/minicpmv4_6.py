"""MiniCPM-V 4.6: Qwen 3.5, and SigLIP features of which squares are merged twice."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.layouts.slices import TOKEN, read_slices
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers import siglip2_tower as siglip2
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

TOWER = "model.vision_tower."


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    model.allow_only("merge_kernel_size", [2, 2], (2, 2))
    model.allow_only("merger_times", 1)
    model.require_off("drop_vision_last_layer")
    model.allow_only("downsample_mode", "16x", "4x")
    tower = replace(siglip2.read_nearest_siglip(configs.tower), nearest="quotient")
    if model.values.get("downsample_mode") != "4x":
        after = model.integer("insert_layer_id", 6)
        merger = siglip2.read_window_merger(configs.tower, tower, after)
        tower = replace(tower, merger=merger)
    shrunk, width = 1 if tower.merger is None else 2, tower.hidden_size
    norm = Norm(1e-6, "layer", bias=True)
    return Vision(
        tower,
        FoldedMlpProjector(width, 2, "gelu", norm, inner=4 * width, shrunk=shrunk),
        read_slices(configs.images, tower.patch_size, 2 * shrunk),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id"),
    )


FAMILY = VisionFamily(
    "minicpmv4_6",
    read,
    names={
        **siglip_names(TOWER),
        **siglip2.merger_names(TOWER),
        "projector.norm": "model.merger.mlp.0.pre_norm",
        "projector.up": "model.merger.mlp.0.linear_1",
        "projector.down": "model.merger.mlp.0.linear_2",
    },
    text="qwen3_5_text",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults=SIGLIP_DEFAULTS,
    image_defaults=SIGLIP_IMAGES,
    # Without its merger the tower has it all the same.
    ignored=(f"{TOWER}vit_merger.",),
)
