"""Phi-4-multimodal's images in the files that it was first published as.

The adapters that these files have beside each matrix are not read: `--lora` takes the one for
images from its own folder.
"""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.vision.towers.siglip_tower import siglip_names
from mrs.families.vision import phi4_multimodal

IMAGE = f"{phi4_multimodal.START}image_embed."
TOKEN = "<|endoftext10|>"


def _base(module: str) -> str:
    return f"{module}.base_layer"


FAMILY = replace(
    phi4_multimodal.FAMILY,
    name="phi4mm",
    read=phi4_multimodal.reader(TOKEN, placeholder="<|image_{n}|>"),
    names={
        **siglip_names(f"{IMAGE}img_processor."),
        "projector.up": f"{IMAGE}img_projection.0",
        "projector.down": f"{IMAGE}img_projection.2",
        "newline": f"{IMAGE}sub_GN",
        "between": f"{IMAGE}glb_GN",
    },
    text_types={"phi4mm": "phi3"},
    text_names={
        "mixer.qkv": _base("self_attn.qkv_proj"),
        "mixer.o": _base("self_attn.o_proj"),
        "ffn.gate_up": _base("mlp.gate_up_proj"),
        "ffn.down": _base("mlp.down_proj"),
    },
    # Its size is not in the configs: that of the defaults.
    tower_key="embd_layer",
)
