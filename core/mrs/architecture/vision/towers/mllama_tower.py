"""The vision tower of Llama 3.2, which encodes all tiles of an image together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision.towers.llama4_tower import LAYER_NAMES
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches, Tower
from mrs.errors import NotReadable

TOWER = "vision_model."
#: Slot -> module name.
MLLAMA_NAMES = {
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
MLLAMA_DEFAULTS = {
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
