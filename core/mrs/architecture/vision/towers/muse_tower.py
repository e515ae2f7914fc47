"""The vision tower of Muse Glimmer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import FULL, layer_count, layer_types
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches, Tower

TOKEN = "<|patch|>"
TOWER = "model.vision_tower."
#: Slot -> module name.
MUSE_NAMES = {
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
MUSE_DEFAULTS = {
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


def read_muse_tower(tower: Config) -> MuseTower:
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
