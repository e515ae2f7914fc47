"""CLIP's vision tower: architecture, tensor names and config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, Tower
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: Defaults of transformers for a `clip_vision_model` config.
CLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}

#: Slot -> module name; names outside of layers follow the tower's own prefix.
CLIP_NAMES = {
    "patches": "embeddings.patch_embedding",
    "class": "embeddings.class_embedding",
    "positions": "embeddings.position_embedding",
    "pre_norm": "pre_layrnorm",
    "layer": "encoder.layers.{layer}.",
    "mixer.norm": "layer_norm1",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.out_proj",
    "ffn.norm": "layer_norm2",
    "ffn.up": "mlp.fc1",
    "ffn.down": "mlp.fc2",
}


@dataclass(frozen=True)
class ClipTower(Tower):
    """CLIP's vision transformer (arXiv 2103.00020) on square images of `image_size` pixels.

    A class embedding precedes the patches; positions have learned embeddings. The output is the
    concatenation of the outputs of the layers `selected` (0 is the input of the first layer), and
    `layers` ends with the last of these. The class token's output is dropped unless `keeps_class`.
    """

    hidden_size: int
    image_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm
    selected: tuple[int, ...]
    keeps_class: bool = False

    @property
    def positions(self) -> int:
        return (self.image_size // self.patches.size) ** 2 + 1

    @property
    def output_size(self) -> int:
        return self.hidden_size * len(self.selected)

    def rows_at_once(self, image: ImageShape) -> int:
        return image.patches // image.pixels[0]


@vision_slots.register
def _(tower: ClipTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield Slot("class", (tower.hidden_size,), "vector", suffix="")
    yield Slot("positions", (tower.positions, tower.hidden_size), "dense")
    yield from norm_slots("pre_norm", tower.hidden_size, tower.norm)


def read_encoder_layer(tower: Config) -> Layer:
    """A layer of the usual vision transformer: biases everywhere, MLP without gate."""
    hidden, heads = tower.positive("hidden_size"), tower.positive("num_attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    return Layer(
        Attention(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, out_bias=True),
        Mlp(tower.positive("intermediate_size"), tower.activation(), gated=False, bias=True),
        Norm(tower.number("layer_norm_eps"), "layer", bias=True),
    )


def read_clip(tower: Config, selected: Sequence[int], *, keeps_class: bool = False) -> ClipTower:
    """The tower up to the last of the layers `selected`; -1 is the last layer of the config."""
    count = layer_count(tower)
    indices = tuple(index + count + 1 if index < 0 else index for index in selected)
    if not indices or not all(0 <= index <= count for index in indices):
        raise NotReadable(
            f"vision_feature_layer = {selected} is out of range: the tower has {count} layers",
            where=tower.where,
        )
    layer = read_encoder_layer(tower)
    return ClipTower(
        hidden_size=tower.positive("hidden_size"),
        image_size=tower.positive("image_size"),
        patches=Patches(tower.positive("patch_size"), tower.positive("num_channels")),
        layers=(layer,) * max(indices),
        norm=layer.norm,
        selected=indices,
        keeps_class=keeps_class,
    )


def clip_names(prefix: str) -> dict[str, str]:
    """Slot -> module name of a tower whose names start with `prefix`."""
    return {
        slot: name if slot.startswith(("mixer", "ffn")) else prefix + name
        for slot, name in CLIP_NAMES.items()
    }


def clip_unread(prefix: str) -> tuple[str, ...]:
    """Prefixes of tensors that features do not need: layers after the selected, and the end."""
    starts = (prefix, f"{prefix}vision_model.")
    names = ("post_layernorm.", "embeddings.position_ids", "encoder.layers.")
    return tuple(start + name for start in starts for name in names)


def read_layers(
    model: Config, default: int = -2, key: str = "vision_feature_layer"
) -> tuple[int, ...]:
    """The tower's layers whose outputs are used: the indices under `key`."""
    layer = model.values.get(key, default)
    layers = tuple(layer) if isinstance(layer, (list, tuple)) else (layer,)
    if not all(isinstance(index, int) for index in layers):
        raise NotReadable(f"{key} = {layer!r} is not a layer index", where=model.where)
    return layers
