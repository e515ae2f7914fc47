"""Llama 4: large images in tiles, and then also as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import SquareTile, read_resampling, read_scale, read_size
from mrs.architecture.vision.shared_projectors import AdapterProjector, FoldedMlpProjector
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP, SIGLIP_IMAGES
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, PixelScale, Tower, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: The norms, whose epsilon configs do not have.
NORM = Norm(1e-5, "layer", bias=True)
TOWER = "vision_model."
#: Slot -> module name in a layer, as in Llama 3.2.
LAYER_NAMES = {
    "mixer.norm": "input_layernorm",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.o_proj",
    "ffn.norm": "post_attention_layernorm",
    "ffn.up": "mlp.fc1",
    "ffn.down": "mlp.fc2",
}
#: Slot -> module name.
NAMES = {
    "patches": f"{TOWER}patch_embedding.linear",
    "class": f"{TOWER}class_embedding",
    "positions": f"{TOWER}positional_embedding_vlm",
    "pre_norm": f"{TOWER}layernorm_pre",
    "post_norm": f"{TOWER}layernorm_post",
    "layer": f"{TOWER}model.layers.{{layer}}.",
    **LAYER_NAMES,
    "projector.up": f"{TOWER}vision_adapter.mlp.fc1",
    "projector.down": f"{TOWER}vision_adapter.mlp.fc2",
    "projector.out": "multi_modal_projector.linear_1",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "num_channels": 3,
    "intermediate_size": 5632,
    "image_size": 448,
    "patch_size": 14,
    "vision_output_dim": 7680,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}
BEGIN, END, WHOLE, TOKEN = "<|image_start|>", "<|image_end|>", "<|image|>", "<|patch|>"
COLUMN_END, ROW_END = "<|tile_x_separator|>", "<|tile_y_separator|>"
#: Bound on the tiles of an image; a broken config must not make a huge prompt.
MOST_TILES = 256


@dataclass(frozen=True)
class Llama4Tower(Tower):
    """A vision transformer on square tiles of `side` x `side` patches, which are encoded singly.

    A class token follows the patches, and its output is dropped. Positions have learned embeddings,
    and rope, too: the first half of the rotary pairs rotates by a patch's column, the second half
    by its row, counted from 1; the class token does not rotate.
    """

    hidden_size: int
    side: int
    patches: Patches
    layers: tuple[Layer, ...]
    rope_base: float


@vision_slots.register
def _(tower: Llama4Tower, hidden_size: int) -> Iterator[Slot]:
    pixels = tower.patches.channels * tower.patches.size**2
    yield Slot("patches", (tower.hidden_size, pixels), "dense")
    yield Slot("class", (tower.hidden_size,), "vector", suffix="")
    yield Slot("positions", (tower.side**2 + 1, tower.hidden_size), "dense", suffix="")
    yield from norm_slots("pre_norm", tower.hidden_size, NORM)
    yield from norm_slots("post_norm", tower.hidden_size, NORM)


def read_tower(tower: Config) -> Llama4Tower:
    hidden, heads = tower.positive("hidden_size"), tower.positive("num_attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    require_two_axes(head_dim, tower.where)
    attention = Attention(
        heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, out_bias=True
    )
    mlp = Mlp(tower.positive("intermediate_size"), "gelu", gated=False, bias=True)
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    patch_size = tower.positive("patch_size")
    return Llama4Tower(
        hidden,
        max(tower.positive("image_size") // patch_size, 1),
        Patches(patch_size, tower.positive("num_channels")),
        (Layer(attention, mlp, NORM),) * layer_count(tower),
        rope.positive_number("rope_theta", tower.number("rope_theta", 1e4), above=1),
    )


def read_projector(config: Config, tower: Llama4Tower) -> AdapterProjector:
    fold = round(1 / config.positive_number("pixel_shuffle_ratio"))
    inner, size = config.positive("projector_input_dim"), config.positive("projector_output_dim")
    widths = {inner, size, config.positive("vision_output_dim")}
    folded = tower.hidden_size * fold**2
    if (
        fold < 1
        or tower.side % fold
        or len(widths) > 1
        or config.positive("intermediate_size") != folded
    ):
        raise NotReadable("the sizes of the projector do not fit the tower", where=config.where)
    mlp = FoldedMlpProjector(tower.hidden_size, fold, "gelu", None, inner, bias=False)
    return AdapterProjector(mlp, size)


@dataclass(frozen=True)
class PaddedTilesLayout:
    """Images are scaled into the grid of tiles that suits them best, and padded with black.

    One more tile has the whole image, if there are several. A shape's `grid` is (rows, columns) of
    tiles. `fills` says that images are enlarged to the grid.
    """

    tile: SquareTile
    most: int
    fills: bool
    scale: PixelScale
    resampling: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        return self._of_grid(*self._grid(height, width))

    def largest(self, edge: int) -> ImageShape:
        """An upper bound: as many tiles as there may be, unless every image fits into one."""
        return self._of_grid(1, 1 if edge <= self.tile.edge and not self.fills else self.most)

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the image in its grid, without padding."""
        rows, columns = self._grid(height, width)
        tall, wide = rows * self.tile.edge, columns * self.tile.edge
        if not self.fills:  # smaller images are enlarged to one tile at most
            tall = min(max(height, self.tile.edge), tall)
            wide = min(max(width, self.tile.edge), wide)
        across, down = wide / width, tall / height
        if across < down:
            return max(min(floor(height * across), tall), 1), wide
        return tall, max(min(floor(width * down), wide), 1)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """The grid that enlarges the image least, or else shrinks it least; then the smallest."""

        def factor(grid: tuple[int, int]) -> float:
            return min(grid[0] * self.tile.edge / height, grid[1] * self.tile.edge / width)

        grids = _grids(self.most)
        enlarging = [grid for grid in grids if factor(grid) >= 1]
        if enlarging:
            best = (max if self.fills else min)(map(factor, enlarging))
        else:
            best = max(map(factor, grids))
        return min((g for g in grids if factor(g) == best), key=lambda g: g[0] * g[1])

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        return self.tile.shape(rows, columns, self._text(rows, columns))

    def _text(self, rows: int, columns: int) -> str:
        tile = TOKEN * self.tile.rows
        line = COLUMN_END.join([tile] * columns) + ROW_END
        return BEGIN + (line * rows if rows * columns > 1 else "") + WHOLE + tile + END


def _grids(most: int) -> list[tuple[int, int]]:
    """All (rows, columns) of up to `most` tiles; of equally good ones the first counts.

    Grids of one aspect ratio are adjacent, the largest first.
    """
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                columns = count // rows
                by_ratio.setdefault(rows / columns, []).append((rows, columns))
    return [grid for grids in by_ratio.values() for grid in grids]


def read_layout(images: Config, tower: Llama4Tower, tile_rows: int) -> PaddedTilesLayout:
    images.allow_only("do_resize", True)
    edges = {*read_size(images, "size", "height", "width")}
    most = images.positive("max_patches", 16)
    if edges != {tower.side * tower.patches.size} or most > MOST_TILES:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, or {most} tiles are out of range",
            where=images.where,
        )
    return PaddedTilesLayout(
        SquareTile(edges.pop(), tower.side, tile_rows),
        most=most,
        fills=images.flag("resize_to_max_canvas", False),
        scale=read_scale(images),
        resampling=read_resampling(images),
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_tower(configs.tower)
    projector = read_projector(configs.tower, tower)
    return Vision(
        tower,
        projector,
        read_layout(configs.images, tower, (tower.side // projector.mlp.fold) ** 2),
        placeholder=WHOLE,
        image_token_id=configs.model.integer("image_token_index", 200_092),
    )


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    edge = clip.positive("image_size")
    return {}, {"size": {"height": edge, "width": edge}}


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    widths = ("projector_input_dim", "projector_output_dim", "vision_output_dim")
    return {
        **dict.fromkeys(widths, clip.positive("adapter_rows")),
        "pixel_shuffle_ratio": 1 / clip.positive("projector.scale_factor", 2),
    }


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "llama4",
    {
        **GGUF_SIGLIP,
        "class": "v.class_embd",
        "positions": "v.position_embd.weight",
        "pre_norm": "v.pre_ln",
        "projector.up": "mm.model.mlp.1",
        "projector.down": "mm.model.mlp.2",
        "projector.out": "mm.model.fc",
        # The converter of 2026 takes it for a norm of Gemma 4.
        "ffn.norm.weight": "attn_post_norm.weight",
        "ffn.norm.bias": "attn_post_norm.bias",
    },
    TOKEN,
    _gguf_configs,
    _gguf_tower,
)


FAMILY = VisionFamily(
    "llama4",
    read,
    names=NAMES,
    text="llama4_text",
    tower_defaults=TOWER_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 336, "width": 336}, "resample": 2},
    gguf=GGUF,
)
