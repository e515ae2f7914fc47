"""InternVL: large images in tiles, and several patches for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    CLIP_IMAGES,
    SquareTile,
    best_grid,
    read_edge,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, PixelScale, Tower, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: Epsilon of the norms of queries and keys, which configs do not have.
QK_NORM = Norm(1e-6)
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 448,
    "patch_size": 14,
    "num_channels": 3,
}
TOWER = "vision_tower."
#: Slot -> module name.
TOWER_NAMES = {
    "patches": f"{TOWER}embeddings.patch_embeddings.projection",
    "class": f"{TOWER}embeddings.cls_token",
    "positions": f"{TOWER}embeddings.position_embeddings",
    "post_norm": f"{TOWER}layernorm",
    "layer": f"{TOWER}encoder.layer.{{layer}}.",
    "mixer.norm": "layernorm_before",
    "mixer.q": "attention.q_proj",
    "mixer.k": "attention.k_proj",
    "mixer.v": "attention.v_proj",
    "mixer.q_norm": "attention.q_norm",
    "mixer.k_norm": "attention.k_norm",
    "mixer.o": "attention.projection_layer",
    "mixer.scale": "lambda_1",
    "ffn.norm": "layernorm_after",
    "ffn.up": "mlp.fc1",
    "ffn.down": "mlp.fc2",
    "ffn.scale": "lambda_2",
}
BEGIN, TOKEN, END = "<img>", "<IMG_CONTEXT>", "</img>"
#: Bound on the tiles of an image; a broken config must not make a huge prompt.
MOST_TILES = 256


@dataclass(frozen=True)
class InternVlTower(Tower):
    """A vision transformer on square views of `side` x `side` patches, which are encoded singly.

    A class token precedes the patches, and its output is dropped. Positions have learned
    embeddings. There may be a `norm` at the end.
    """

    hidden_size: int
    side: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm | None


@vision_slots.register
def _(tower: InternVlTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield Slot("class", (tower.hidden_size,), "vector", suffix="")
    yield Slot("positions", (tower.side**2 + 1, tower.hidden_size), "dense", suffix="")
    if tower.norm is not None:
        yield from norm_slots("post_norm", tower.hidden_size, tower.norm)


def read_tower(tower: Config) -> InternVlTower:
    tower.allow_only("norm_type", "layer_norm", "rms_norm")
    tower.allow_only("use_absolute_position_embeddings", True)
    eps = tower.number("layer_norm_eps")
    layer_norm = Norm(eps, "layer", bias=True)
    norm = Norm(eps) if tower.values.get("norm_type") == "rms_norm" else layer_norm
    hidden, heads = tower.positive("hidden_size"), tower.positive("num_attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    attention = Attention(
        heads,
        heads,
        head_dim,
        head_dim**-0.5,
        None,
        qk_norm=QK_NORM if tower.flag("use_qk_norm", False) else None,
        qk_norm_whole=True,
        qkv_bias=tower.flag("attention_bias", False),
        out_bias=True,
    )
    mlp = Mlp(tower.positive("intermediate_size"), tower.activation(), gated=False, bias=True)
    patch = read_edge(tower, "patch_size")
    return InternVlTower(
        hidden,
        max(read_edge(tower, "image_size") // patch, 1),
        Patches(patch, tower.positive("num_channels"), bias=True),
        (Layer(attention, mlp, norm, style="scaled"),) * layer_count(tower),
        None if tower.flag("use_mean_pooling", True) else layer_norm,
    )


@dataclass(frozen=True)
class CanvasLayout:
    """Images are stretched to the grid of tiles nearest in shape; one more tile has the whole.

    An image of one tile has no further one. A shape's `grid` is (rows, columns) of tiles.
    """

    tile: SquareTile
    least: int
    most: int
    scale: PixelScale
    resampling: str
    is_resizable: bool = False

    def shape(self, height: int, width: int) -> ImageShape:
        return self._of_grid(*best_grid(height, width, self.tile.edge, self.least, self.most))

    def largest(self, edge: int) -> ImageShape:
        """As many tiles as there may be: some aspect ratio leads to them."""
        return self._of_grid(1, self.most)

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        count = self.tile.views(rows, columns) * self.tile.rows
        return self.tile.shape(rows, columns, BEGIN + TOKEN * count + END)


def read_layout(images: Config, tower: InternVlTower, tile_rows: int) -> CanvasLayout:
    images.allow_only("do_resize", True)
    edges = {*read_size(images, "size", "height", "width")}
    least, most = images.positive("min_patches", 1), images.positive("max_patches", 12)
    if edges != {tower.side * tower.patches.size} or not least <= most <= MOST_TILES:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, or its {least} to {most} tiles "
            "are out of range",
            where=images.where,
        )
    return CanvasLayout(
        SquareTile(edges.pop(), tower.side, tile_rows),
        least=least,
        most=most,
        scale=read_scale(images),
        resampling=read_resampling(images),
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    model.allow_only("vision_feature_select_strategy", "default")
    model.allow_only("vision_feature_layer", -1)
    fold = round(1 / model.positive_number("downsample_ratio", 0.5))
    tower = read_tower(configs.tower)
    if fold < 1 or tower.side % fold:
        raise NotReadable(
            f"{tower.side} patches along the edge of a tile do not fit downsample_ratio",
            where=model.where,
        )
    activation = model.activation("gelu", "projector_hidden_act")
    return Vision(
        tower,
        FoldedMlpProjector(tower.hidden_size, fold, activation, Norm(1e-5, "layer", bias=True)),
        read_layout(configs.images, tower, (tower.side // fold) ** 2),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 151_667),
    )


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    edge = clip.positive("image_size")
    tiles = {
        "min_patches": clip.positive("preproc_min_tiles", 1),
        "max_patches": clip.positive("preproc_max_tiles", 12),
    }
    fold = clip.positive("projector.scale_factor", 2)
    return {"downsample_ratio": 1 / fold}, {"size": {"height": edge, "width": edge}, **tiles}


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    return {
        "hidden_act": "silu" if clip.flag("use_silu", False) else "gelu",
        "norm_type": "layer_norm" if clip.flag("has_norm_bias") else "rms_norm",
        "use_qk_norm": clip.flag("has_qk_norm"),
        "attention_bias": clip.flag("has_qkv_bias"),
        "use_mean_pooling": not clip.flag("has_post_norm"),
    }


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "internvl",
    {
        **GGUF_SIGLIP,
        "class": "v.class_embd",
        "positions": "v.position_embd.weight",
        "mixer.q_norm": "attn_q_norm",
        "mixer.k_norm": "attn_k_norm",
        "mixer.scale": "ls1.weight",
        "ffn.scale": "ls2.weight",
        "projector.norm": "mm.model.mlp.0",
        "projector.up": "mm.model.mlp.1",
        "projector.down": "mm.model.mlp.3",
    },
    TOKEN,
    _gguf_configs,
    _gguf_tower,
    texts=("qwen2", "qwen3", "qwen3_moe", "llama"),
)


FAMILY = VisionFamily(
    "internvl",
    read,
    names={
        **TOWER_NAMES,
        "projector.norm": "multi_modal_projector.layer_norm",
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
    },
    text="qwen2",
    tower_defaults=TOWER_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"height": 384, "width": 384}},
    unread=("vision_tower.embeddings.mask_token",),
    gguf=GGUF,
)
