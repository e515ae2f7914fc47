"""The vision tower of Llama 4, and its projector."""

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
from mrs.architecture.vision.shared_projectors import AdapterProjector, FoldedMlpProjector
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import Patches, Tower
from mrs.errors import NotReadable

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
LLAMA4_NAMES = {
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
LLAMA4_DEFAULTS = {
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


def read_llama4_tower(tower: Config) -> Llama4Tower:
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


def read_adapter(config: Config, tower: Llama4Tower) -> AdapterProjector:
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
