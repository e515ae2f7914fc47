"""SigLIP's tower: its parts, their names in files, and how configs describe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer, Norm
from mrs.architecture.readers.layer_reader import layer_count
from mrs.architecture.slots import Slot
from mrs.architecture.vision.towers.clip_tower import clip_names, read_encoder_layer
from mrs.architecture.vision_slots import norm_slot, patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches
from mrs.errors import NotReadable

#: What transformers assumes where a `siglip_vision_model` config is silent.
SIGLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}

SIGLIP_IMAGES = {
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
    "rescale_factor": 1 / 255,
}


#: Module names in the file of a GGUF projector.
GGUF_SIGLIP = {
    "patches": "v.patch_embd",
    "positions": "v.position_embd",
    "post_norm": "v.post_ln",
    "layer": "v.blk.{layer}.",
    "mixer.norm": "ln1",
    "mixer.q": "attn_q",
    "mixer.k": "attn_k",
    "mixer.v": "attn_v",
    "mixer.o": "attn_out",
    "ffn.norm": "ln2",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}


@dataclass(frozen=True)
class SiglipTower:
    """SigLIP's vision transformer (arXiv 2303.15343): no class vector, and a norm at the end.

    A vector is added to each patch, learned for its place in square pictures of `image_size`.
    With `fractional_places` views may have any size: a patch takes the vector of the learned place
    that lies as far down and across (arXiv 2307.06304). Views are seen one by one.
    """

    hidden_size: int
    image_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm
    fractional_places: bool = False

    @property
    def side(self) -> int:
        return self.image_size // self.patches.size

    @property
    def output_size(self) -> int:
        return self.hidden_size

    @property
    def stacks(self) -> Mapping[str, tuple[Layer, ...]]:
        return {"layer": self.layers}


@vision_slots.register
def _(part: SiglipTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(part.patches, part.hidden_size)
    yield Slot("positions", (part.side**2, part.hidden_size), "dense")
    yield norm_slot("post_norm", part.hidden_size, part.norm)


def read_siglip(tower: Config, *, fractional_places: bool = False) -> SiglipTower:
    layer = read_encoder_layer(tower)
    image_size, patch_size = tower.positive("image_size"), tower.positive("patch_size")
    if image_size < patch_size:
        raise NotReadable(f"patches of {patch_size} in pictures of {image_size}", where=tower.where)
    return SiglipTower(
        hidden_size=tower.positive("hidden_size"),
        image_size=image_size,
        patches=Patches(patch_size, tower.positive("num_channels"), bias=True),
        layers=(layer,) * layer_count(tower),
        norm=layer.norm,
        fractional_places=fractional_places,
    )


def siglip_names(prefix: str) -> dict[str, str]:
    """Where the parts of a tower are whose names start with `prefix` in a file."""
    return {**clip_names(prefix), "post_norm": f"{prefix}post_layernorm"}
