"""Phi-4-multimodal's images: crops and the whole image. Its adapter is loaded as any other."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.padded_crops import read_padded_crops
from mrs.architecture.vision.shared_projectors import CropsProjector, MlpProjector
from mrs.architecture.vision.towers.phi4_tower import read_phi4_tower
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import ReadVision, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

START = "model.embed_tokens_extend."
TOKEN = "<|image|>"


def reader(token: str, placeholder: str) -> ReadVision:
    """`token` is repeated in the prompt, `placeholder` stands for an image in a message."""

    def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
        tower = read_phi4_tower(configs.tower)
        return Vision(
            tower,
            CropsProjector(MlpProjector(tower.hidden_size), is_mean=True),
            read_padded_crops(configs.images, tower, token),
            placeholder=placeholder,
            image_token_id=configs.tower.integer("image_token_id", 200_010),
        )

    return read


FAMILY = VisionFamily(
    "phi4_multimodal",
    reader(TOKEN, placeholder=TOKEN),
    names={
        **siglip_names(f"{START}image_embed.img_processor."),
        "projector.up": f"{START}image_embed.img_projection_up",
        "projector.down": f"{START}image_embed.img_projection_down",
        "newline": f"{START}image_embed.sub_img_feature_extensor",
        "between": f"{START}image_embed.global_img_feature_extensor",
    },
    text_types={"phi4_multimodal": "phi3"},
    text_start="model.",
    head="lm_head",
    text_defaults={"vocab_size": 200_064, "num_key_value_heads": 8},
    tower_defaults={
        **SIGLIP_DEFAULTS,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
    },
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 448, "width": 448}, "dynamic_hd": 36},
    ignored=(f"{START}image_embed.img_processor.", f"{START}audio_embed."),
)
