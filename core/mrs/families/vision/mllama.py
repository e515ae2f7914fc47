"""Llama 3.2 Vision: images in up to four tiles, which cross-attention layers attend to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_IMAGES
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, PixelScale, Tower, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.families.vision.llama4 import LAYER_NAMES
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

TOWER = "vision_model."
#: Slot -> module name.
TOWER_NAMES = {
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
    **LAYER_NAMES,
    "mixer.residual_gate": "gate_attn",
    "ffn.residual_gate": "gate_ffn",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
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
}
#: The patches of a tile are padded to a multiple of it.
ROWS_MULTIPLE = 8
TOKEN = "<|image|>"
#: The names that newer versions of transformers write.
SPELLINGS = {
    TOWER: "model.vision_model.",
    "multi_modal_projector": "model.multi_modal_projector",
    "language_model.model.": "model.language_model.",
    "language_model.lm_head": "lm_head",
}


def tile_grids(most_tiles: int) -> list[tuple[int, int]]:
    """(rows, columns) of all grids of at most `most_tiles` tiles, by aspect ratio id - 1."""
    return [
        (rows, columns)
        for rows in range(1, most_tiles + 1)
        for columns in range(1, most_tiles // rows + 1)
    ]


@dataclass(frozen=True)
class TilesTower(Tower):
    """Llama 3.2's vision transformer on `most_tiles` square tiles of `image_size` pixels.

    Unused tiles are encoded too. A class embedding precedes the patches of each tile. Positions,
    and (gated) the tiles of each grid, have learned embeddings. All tiles go together through
    `layers` and then, with further tile embeddings, through `global_layers`. The output
    concatenates that result with the inputs of the layers `selected`, which are interleaved value
    by value.
    """

    hidden_size: int
    image_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    global_layers: tuple[Layer, ...]
    norm: Norm
    selected: tuple[int, ...]
    most_tiles: int

    @property
    def positions(self) -> int:
        return (self.image_size // self.patches.size) ** 2 + 1

    @property
    def output_size(self) -> int:
        return self.hidden_size * (1 + len(self.selected))

    @property
    def stacks(self) -> Mapping[str, tuple[Layer, ...]]:
        return {"layer": self.layers, "global": self.global_layers}


@vision_slots.register
def _(tower: TilesTower, hidden_size: int) -> Iterator[Slot]:
    hidden = tower.hidden_size
    # Aspect ratio id 0 means that there is no image.
    grids = len(tile_grids(tower.most_tiles)) + 1
    yield patch_slot(tower.patches, hidden)
    yield Slot("class", (hidden,), "vector", suffix="")
    yield Slot("positions", (tower.positions, hidden), "dense", suffix="")
    yield Slot("positions.gate", (1,), "vector", suffix="")
    yield Slot("positions.tiles", (grids, tower.most_tiles * tower.positions * hidden), "dense")
    for name in ("tiles_before", "tiles_after"):
        yield Slot(name, (grids, tower.most_tiles * hidden), "dense")
        yield Slot(f"{name}.gate", (1,), "vector", suffix="")
    yield from norm_slots("pre_norm", hidden, tower.norm)
    yield from norm_slots("post_norm", hidden, tower.norm)


def read_tower(tower: Config) -> TilesTower:
    hidden, heads = tower.positive("hidden_size"), tower.positive("attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    attention = Attention(heads, heads, head_dim, head_dim**-0.5, None)
    mlp = Mlp(tower.positive("intermediate_size"), tower.activation(), gated=False, bias=True)
    norm = Norm(tower.number("norm_eps"), "layer", bias=True)
    count = layer_count(tower)
    selected = tuple(tower.sequence("intermediate_layers_indices"))
    if not all(isinstance(index, int) and 0 <= index < count for index in selected):
        raise NotReadable(
            f"intermediate_layers_indices = {selected} is out of range: the tower has {count} "
            "layers",
            where=tower.where,
        )
    most_tiles = tower.positive("max_num_tiles")
    if tower.has("supported_aspect_ratios"):
        tower.allow_only("supported_aspect_ratios", [list(grid) for grid in tile_grids(most_tiles)])
    return TilesTower(
        hidden_size=hidden,
        image_size=tower.positive("image_size"),
        patches=Patches(tower.positive("patch_size"), tower.positive("num_channels")),
        layers=(Layer(attention, mlp, norm),) * count,
        global_layers=(Layer(attention, mlp, norm, "gated"),) * tower.positive("num_global_layers"),
        norm=Norm(1e-5, "layer", bias=True),
        selected=selected,
        most_tiles=most_tiles,
    )


@dataclass(frozen=True)
class LinearProjector:
    """One linear map from `input_size` values of the tower to the hidden size."""

    input_size: int
    bias: bool = True


@vision_slots.register
def _(projector: LinearProjector, hidden_size: int) -> Iterator[Slot]:
    yield Slot("projector", (hidden_size, projector.input_size), bias=projector.bias)


@dataclass(frozen=True)
class TilesLayout:
    """The grid of tiles of `edge` pixels that fits an image best; black padding right and below.

    A shape's `grid` is (rows, columns) of tiles. The tower encodes `positions` patches of each of
    `most_tiles` tiles; cross-attention uses those of the tiles in the grid.
    """

    edge: int
    most_tiles: int
    positions: int
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        return self._shape(*self.grid(height, width))

    def largest(self, edge: int) -> ImageShape:
        """Grids have at most as many rows and columns as tiles are needed for an edge of `edge`."""
        most = -(-edge // self.edge)
        grids = [grid for grid in tile_grids(self.most_tiles) if max(grid) <= most]
        return max((self._shape(*grid) for grid in grids), key=lambda shape: shape.keys)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of the grid that enlarges the image least, or else shrinks it least.

        Of several such grids, the one with the fewest tiles.
        """

        def scale_of(grid: tuple[int, int]) -> float:
            return min(grid[0] * self.edge / height, grid[1] * self.edge / width)

        grids = tile_grids(self.most_tiles)
        scales = [scale_of(grid) for grid in grids]
        enlarging = [scale for scale in scales if scale >= 1]
        best = min(enlarging) if enlarging else max(scales)
        equal = [grid for grid, scale in zip(grids, scales, strict=True) if scale == best]
        return min(equal, key=lambda grid: grid[0] * grid[1])

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the scaled image inside its grid.

        It is enlarged only if both edges are shorter than a tile's.
        """
        rows, columns = self.grid(height, width)
        most_height = min(max(height, self.edge), rows * self.edge)
        most_width = min(max(width, self.edge), columns * self.edge)
        by_height, by_width = most_height / height, most_width / width
        if by_width < by_height:
            return min(floor(height * by_width) or 1, most_height), most_width
        return most_height, min(floor(width * by_height) or 1, most_width)

    def _shape(self, rows: int, columns: int) -> ImageShape:
        padded = -(-self.positions // ROWS_MULTIPLE) * ROWS_MULTIPLE
        return ImageShape(
            pixels=(self.most_tiles, 3, self.edge, self.edge),
            patches=self.most_tiles * padded,
            rows=1,
            text=self.token,
            grid=(rows, columns),
            keys=rows * columns * self.positions,
        )


def read_layout(images: Config, tower: TilesTower, token: str) -> TilesLayout:
    """The layout for `tower`; preprocessor_config.json must agree with it on the tiles."""
    edges = {*read_size(images, "size", "height", "width"), tower.image_size}
    if len(edges) > 1 or images.positive("max_image_tiles") != tower.most_tiles:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, which has {tower.most_tiles} "
            f"tiles of {tower.image_size} pixels",
            where=images.where,
            hint="it may belong to another model",
        )
    return TilesLayout(
        edge=tower.image_size,
        most_tiles=tower.most_tiles,
        positions=tower.positions,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=token,
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_tower(configs.tower)
    return Vision(
        tower,
        LinearProjector(tower.output_size),
        read_layout(configs.images, tower, TOKEN),
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_index", 128_256),
        enters="cross_attention",
    )


FAMILY = VisionFamily(
    "mllama",
    read,
    aliases=("vllama",),
    names={**TOWER_NAMES, "projector": "multi_modal_projector"},
    text="mllama_text_model",
    tower_defaults=TOWER_DEFAULTS,
    image_defaults={
        **SIGLIP_IMAGES,
        "size": {"height": 224, "width": 224},
        "resample": 2,
        "max_image_tiles": 4,
    },
    spellings=SPELLINGS,
)
