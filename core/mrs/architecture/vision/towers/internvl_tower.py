"""InternVL's vision tower: a class token, and learned vectors that scale what layers add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision.image_layouts import read_edge
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches, Tower

#: Epsilon of the norms of queries and keys, which configs do not have.
QK_NORM = Norm(1e-6)
#: Defaults of transformers.
INTERNVL_DEFAULTS = {
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
INTERNVL_NAMES = {
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


def read_internvl_tower(tower: Config) -> InternVlTower:
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
