"""Pixtral's vision tower (arXiv 2410.07073), and its projector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Activation, Mlp
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches, Tower
from mrs.errors import Unsupported

TOWER = "vision_tower."
#: Slot -> module name.
PIXTRAL_NAMES = {
    "patches": f"{TOWER}patch_conv",
    "pre_norm": f"{TOWER}ln_pre",
    "layer": f"{TOWER}transformer.layers.{{layer}}.",
    "mixer.norm": "attention_norm",
    "mixer.q": "attention.q_proj",
    "mixer.k": "attention.k_proj",
    "mixer.v": "attention.v_proj",
    "mixer.o": "attention.o_proj",
    "ffn.norm": "ffn_norm",
    "ffn.gate": "feed_forward.gate_proj",
    "ffn.up": "feed_forward.up_proj",
    "ffn.down": "feed_forward.down_proj",
}
#: Defaults of transformers.
PIXTRAL_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu",
}
#: Epsilon of the tower's norms, which configs do not have.
TOWER_EPS = 1e-5


@dataclass(frozen=True)
class PixtralTower(Tower):
    """A vision transformer with RMSNorm, gated MLPs and two-dimensional rope.

    Rotary pairs are (2i, 2i + 1) if they are `adjacent`, else (i, i + head size / 2).
    """

    hidden_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm
    rope_base: float
    adjacent: bool = False


@dataclass(frozen=True)
class MergingProjector:
    """A norm, a linear map of each `merged` x `merged` patches to one, and a two-layer MLP."""

    input_size: int
    merged: int
    norm: Norm
    activation: Activation
    bias: bool


@vision_slots.register
def _(tower: PixtralTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield from norm_slots("pre_norm", tower.hidden_size, tower.norm)


@vision_slots.register
def _(projector: MergingProjector, hidden_size: int) -> Iterator[Slot]:
    size = projector.input_size
    yield from norm_slots("projector.norm", size, projector.norm)
    yield Slot("projector.merge", (size, size * projector.merged**2))
    yield Slot("projector.up", (hidden_size, size), bias=projector.bias)
    yield Slot("projector.down", (hidden_size, hidden_size), bias=projector.bias)


def read_pixtral(tower: Config, selected: tuple[int, ...]) -> PixtralTower:
    """The tower up to the only layer in `selected`; -1 is the last layer of the config."""
    count = layer_count(tower)
    if len(selected) != 1 or not -count <= selected[0] <= count:
        raise Unsupported(
            f"vision_feature_layer = {list(selected)} is not supported for {count} layers",
            where=tower.where,
        )
    hidden, heads = tower.positive("hidden_size"), tower.positive("num_attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    norm = Norm(TOWER_EPS)
    layer = Layer(
        Attention(heads, heads, head_dim, head_dim**-0.5, None),
        Mlp(tower.positive("intermediate_size"), tower.activation("gelu")),
        norm,
    )
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    base = tower.number("rope_theta", 1e4)
    return PixtralTower(
        hidden,
        Patches(tower.positive("patch_size"), tower.positive("num_channels")),
        (layer,) * (selected[0] + count + 1 if selected[0] < 0 else selected[0]),
        norm,
        rope.number("rope_theta", base),
    )
