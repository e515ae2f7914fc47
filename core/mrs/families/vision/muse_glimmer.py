"""Muse Glimmer: images nearly of their own size, and an adapter with a norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, prod, sqrt
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    MOST_ROWS,
    SquareGridLayout,
    read_resampling,
    read_scale,
    squarest_grid,
)
from mrs.architecture.vision.shared_projectors import AdapterProjector, FoldedMlpProjector
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP, SIGLIP_IMAGES
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, Tower, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, layer_count, layer_types
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

TOKEN = "<|patch|>"
TOWER = "model.vision_tower."
#: Slot -> module name.
TOWER_NAMES = {
    "patches": f"{TOWER}patch_embedder.patch_embedding",
    "positions": f"{TOWER}patch_embedder.position_embedding_table",
    "pre_norm": f"{TOWER}ln_pre",
    "post_norm": f"{TOWER}ln_post",
    "layer": f"{TOWER}layers.{{layer}}.",
    "mixer.norm": "norm1",
    "mixer.q": "attn.q_proj",
    "mixer.k": "attn.k_proj",
    "mixer.v": "attn.v_proj",
    "mixer.o": "attn.proj",
    "ffn.norm": "norm2",
    "ffn.up": "mlp.fc1",
    "ffn.down": "mlp.fc2",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "patch_size": 14,
    "patch_temporal": 2,
    "pos_emb_height": 32,
    "pos_emb_width": 32,
    "num_attention_heads": 16,
    "num_hidden_layers": 50,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "merge_size": 2,
}
#: Of layers that the config does not list, every fourth one and the last attend to all patches.
_PERIOD, _WINDOW = 4, "window_attention"
BEGIN, END = "<|image_start|>", "<|image_end|>"


@dataclass(frozen=True)
class MuseTower(Tower):
    """A vision transformer for images of any size, with learned positions and rope.

    A table of `side` x `side` positions is laid over the image, transposed: see `MuseTowerModule`.
    The first half of the rotary pairs rotates by a patch's column, the second half by its row;
    pairs are (2i, 2i + 1) if `adjacent`, else (i, i + head size / 2). Patches attend within windows
    of `side` x `side` patches; in the layers `full` to all.
    """

    hidden_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm
    side: int
    full: tuple[int, ...]
    rope_base: float
    adjacent: bool = False

    @property
    def interpolated_values(self) -> int:
        return self.side**2 * self.hidden_size


@vision_slots.register
def _(tower: MuseTower, hidden_size: int) -> Iterator[Slot]:
    patches = patch_slot(tower.patches, tower.hidden_size)
    if tower.patches.frames_first:  # a matrix
        patches = replace(patches, shape=(tower.hidden_size, prod(patches.shape[1:])))
    yield patches
    yield Slot("positions", (tower.side**2, tower.hidden_size), "dense")
    yield from norm_slots("pre_norm", tower.hidden_size, tower.norm)
    yield from norm_slots("post_norm", tower.hidden_size, tower.norm)


def read_tower(tower: Config) -> MuseTower:
    side = tower.positive("pos_emb_height")
    tower.allow_only("pos_emb_width", side)
    hidden, heads = tower.positive("hidden_size"), tower.positive("num_attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    require_two_axes(head_dim, tower.where)
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    rope.allow_only("rope_type", "axial")
    attention = Attention(
        heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, out_bias=True
    )
    mlp = Mlp(tower.positive("intermediate_size"), tower.activation("gelu"), gated=False, bias=True)
    layer, count = Layer(attention, mlp, Norm(1e-5, "layer", bias=True)), layer_count(tower)
    return MuseTower(
        hidden,
        Patches(
            tower.positive("patch_size"),
            frames=tower.positive("patch_temporal"),
            frames_first=True,
        ),
        (layer,) * count,
        Norm(tower.number("layer_norm_eps", 1e-5), "layer", bias=True),
        side,
        _full_layers(tower, count),
        rope.positive_number("rope_theta", 1e4, above=1),
    )


def _full_layers(tower: Config, count: int) -> tuple[int, ...]:
    """The layers in which patches attend to the whole image."""
    if tower.has("layer_types"):
        kinds = layer_types(tower, FULL, _WINDOW)
        return tuple(layer for layer, kind in enumerate(kinds) if kind == FULL)
    return tuple(
        layer for layer in range(count) if (layer + 1) % _PERIOD == 0 or layer == count - 1
    )


@dataclass(frozen=True)
class NearestGridLayout(SquareGridLayout):
    """Images nearly keep their size, with at most `most_rows` squares."""

    marks = BEGIN, TOKEN, END
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        tall, wide = height / self.square, width / self.square
        if tall * wide > self.most_rows:
            tall = sqrt(self.most_rows / (wide / tall))
            wide = tall * (width / height)
        # Of grids that are equally near, transformers takes the first one of a Python set.
        grids = {(r, c) for r in (floor(tall), ceil(tall)) for c in (floor(wide), ceil(wide))}
        fitting = [(r, c) for r, c in grids if r and c and r * c <= self.most_rows]
        fitting = fitting or [(max(1, round(tall)), max(1, round(wide)))]
        return self.of_grid(*min(fitting, key=lambda g: abs(g[0] / g[1] - height / width)))

    def largest(self, edge: int) -> ImageShape:
        """Images that are so narrow that no grid fits have one square for each of their length."""
        side = ceil(edge / self.square)
        rows = max(min(side**2, self.most_rows), side)
        return self.of_grid(*squarest_grid(rows))

    def of_grid(self, rows: int, columns: int) -> ImageShape:
        return replace(
            super().of_grid(rows, columns), views=((rows * self.pool, columns * self.pool),)
        )


def read_layout(images: Config, patch_size: int, merge: int, frames: int) -> NearestGridLayout:
    images.allow_only("do_resize", True)
    images.allow_only("patch_size", patch_size)
    images.allow_only("merge_size", merge)
    images.allow_only("temporal_patch_size", frames)
    most = images.positive("max_image_tokens")
    if most > MOST_ROWS:
        raise NotReadable(f"max_image_tokens = {most} is out of range", where=images.where)
    square = patch_size * merge
    return NearestGridLayout(square, merge, most, read_scale(images), read_resampling(images))


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, tower = configs.model, read_tower(configs.tower)
    merge, inner = configs.tower.positive("merge_size"), model.positive("projector_hidden_size")
    model.allow_only("out_hidden_size", tower.hidden_size * merge**2)
    activation = model.activation("gelu", "projector_hidden_act")
    mlp = FoldedMlpProjector(
        tower.hidden_size, merge, activation, None, inner, bias=False, channels_first=True
    )
    patches = tower.patches
    return Vision(
        tower,
        AdapterProjector(mlp, inner, text.norm),
        read_layout(configs.images, patches.size, merge, patches.frames),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id"),
    )


def _gguf_merge(clip: Config) -> int:
    return clip.positive("spatial_merge_size", 2)


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The sizes of the adapter; layers and images are those of the published model."""
    folded = clip.positive("embedding_length") * _gguf_merge(clip) ** 2
    return {"out_hidden_size": folded, "projector_hidden_size": clip.positive("projector_rows")}, {}


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    merge = _gguf_merge(clip)
    side = clip.positive("image_size") // (clip.positive("patch_size") * merge)
    return {"merge_size": merge, "pos_emb_height": side, "pos_emb_width": side}


def _stored_in_gguf(tower: Any) -> Any:
    """The tower with permuted rows of q and k, and with one matrix for the sum of all frames."""
    patches = replace(tower.patches, frames=1, frames_first=False)
    return replace(tower, patches=patches, adjacent=True)


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "muse-glimmer",
    {
        **GGUF_SIGLIP,
        "pre_norm": "v.pre_ln",
        "projector.up": "mm.0",
        "projector.down": "mm.1",
        "projector.out": "mm.2",
    },
    TOKEN,
    _gguf_configs,
    _gguf_tower,
    _stored_in_gguf,
)


FAMILY = VisionFamily(
    "muse_glimmer",
    read,
    names={
        **TOWER_NAMES,
        "projector.up": "model.vision_adapter.fc1",
        "projector.down": "model.vision_adapter.fc2",
        "projector.out": "model.vision_projection",
    },
    text="muse_glimmer_text",
    text_start="model.language_model.",
    head="lm_head",
    defaults={
        "image_token_id": 200_092,
        "out_hidden_size": 6144,
        "projector_hidden_size": 4096,
    },
    tower_defaults=TOWER_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "resample": 1, "max_image_tokens": 4096},
    gguf=GGUF,
)
