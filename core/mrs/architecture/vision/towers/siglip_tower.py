"""SigLIP's vision tower: architecture, tensor names and config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.vision.image_layouts import read_edge
from mrs.architecture.vision.towers.clip_tower import clip_names, read_encoder_layer
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, Tower
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.layer import Layer
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: Defaults of transformers for a `siglip_vision_model` config.
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

#: Slot -> module name in mmproj files.
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
class SiglipTower(Tower):
    """SigLIP's vision transformer (arXiv 2303.15343): no class token, and a norm at the end.

    Positions have learned embeddings, for square images of `image_size` pixels. With
    `fractional_positions` images may have any size: a patch gets the learned embedding at the same
    relative row and column (arXiv 2307.06304). Images are encoded one by one.
    """

    hidden_size: int
    image_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm
    fractional_positions: bool = False

    @property
    def side(self) -> int:
        return self.image_size // self.patches.size

    def rows_at_once(self, image: ImageShape) -> int:
        return image.patches // image.pixels[0]


@vision_slots.register
def _(tower: SiglipTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield Slot("positions", (tower.side**2, tower.hidden_size), "dense")
    yield from norm_slots("post_norm", tower.hidden_size, tower.norm)


def read_siglip(tower: Config, *, fractional_positions: bool = False) -> SiglipTower:
    layer = read_encoder_layer(tower)
    image_size, patch_size = read_edge(tower, "image_size"), read_edge(tower, "patch_size")
    if image_size < patch_size:
        raise NotReadable(
            f"patch_size = {patch_size} is larger than image_size = {image_size}",
            where=tower.where,
        )
    return SiglipTower(
        hidden_size=tower.positive("hidden_size"),
        image_size=image_size,
        patches=Patches(patch_size, tower.positive("num_channels"), bias=True),
        layers=(layer,) * layer_count(tower),
        norm=layer.norm,
        fractional_positions=fractional_positions,
    )


def siglip_names(prefix: str) -> dict[str, str]:
    """Slot -> module name of a tower whose names start with `prefix`."""
    return {**clip_names(prefix), "post_norm": f"{prefix}post_layernorm"}
