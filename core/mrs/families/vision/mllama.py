"""Llama 3.2 Vision: images in up to four tiles, which cross-attention layers attend to."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.shared_projectors import LinearProjector
from mrs.architecture.vision.towers.mllama_tower import TilesLayout, TilesTower, read_tower
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.errors import NotReadable

TOWER = "vision_model."
#: The names that newer versions of transformers write.
SPELLINGS = {
    TOWER: "model.vision_model.",
    "multi_modal_projector": "model.multi_modal_projector",
    "language_model.model.": "model.language_model.",
    "language_model.lm_head": "lm_head",
}


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    tower = read_tower(configs.tower)
    layout = TilesLayout(
        edge=_read_edge(configs, tower),
        most_tiles=tower.most_tiles,
        positions=tower.positions,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token="<|image|>",
    )
    return Vision(
        tower,
        LinearProjector(tower.output_size),
        layout,
        placeholder="<|image|>",
        image_token_id=model.integer("image_token_index", 128_256),
        enters="cross_attention",
    )


def _read_edge(configs: VisionConfigs, tower: TilesTower) -> int:
    """The edge of a tile in pixels; tower and preprocessor_config.json must agree on it."""
    images = configs.images
    edges = {*read_size(images, "size", "height", "width"), tower.image_size}
    if len(edges) > 1 or images.positive("max_image_tiles") != tower.most_tiles:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, which has {tower.most_tiles} "
            f"tiles of {tower.image_size} pixels",
            where=images.where,
            hint="it may belong to another model",
        )
    return tower.image_size


FAMILY = VisionFamily(
    "mllama",
    read,
    aliases=("vllama",),
    names={
        "patches": f"{TOWER}patch_embedding",
        "class": f"{TOWER}class_embedding",
        "positions": f"{TOWER}gated_positional_embedding.embedding",
        "positions.gate": f"{TOWER}gated_positional_embedding.gate",
        "positions.tiles": f"{TOWER}gated_positional_embedding.tile_embedding",
        "tiles_before": f"{TOWER}pre_tile_positional_embedding.embedding",
        "tiles_before.gate": f"{TOWER}pre_tile_positional_embedding.gate",
        "tiles_after": f"{TOWER}post_tile_positional_embedding.embedding",
        "tiles_after.gate": f"{TOWER}post_tile_positional_embedding.gate",
        "pre_norm": f"{TOWER}layernorm_pre",
        "post_norm": f"{TOWER}layernorm_post",
        "layer": f"{TOWER}transformer.layers.{{layer}}.",
        "global": f"{TOWER}global_transformer.layers.{{layer}}.",
        "mixer.norm": "input_layernorm",
        "mixer.q": "self_attn.q_proj",
        "mixer.k": "self_attn.k_proj",
        "mixer.v": "self_attn.v_proj",
        "mixer.o": "self_attn.o_proj",
        "mixer.residual_gate": "gate_attn",
        "ffn.norm": "post_attention_layernorm",
        "ffn.up": "mlp.fc1",
        "ffn.down": "mlp.fc2",
        "ffn.residual_gate": "gate_ffn",
        "projector": "multi_modal_projector",
    },
    text="mllama_text_model",
    tower_defaults={
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_global_layers": 8,
        "attention_heads": 16,
        "num_channels": 3,
        "image_size": 448,
        "patch_size": 14,
        "hidden_act": "gelu",
        "norm_eps": 1e-5,
        "max_num_tiles": 4,
        "intermediate_layers_indices": [3, 7, 15, 23, 30],
    },
    image_defaults={
        "image_mean": (0.5, 0.5, 0.5),
        "image_std": (0.5, 0.5, 0.5),
        "size": {"height": 224, "width": 224},
        "resample": 2,
        "max_image_tiles": 4,
    },
    spellings=SPELLINGS,
)
