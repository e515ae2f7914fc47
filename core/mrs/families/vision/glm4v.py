"""GLM-4.1V: GLM 4 with the rope and nearly the tower of Qwen2-VL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.dynamic_layout import read_dynamic
from mrs.architecture.vision.image_layouts import CLIP_IMAGES, read_edge
from mrs.architecture.vision.towers.qwen_mmproj import apart_frames, gguf_tower, image_limits
from mrs.architecture.vision.towers.qwen_tower import (
    NAMES,
    TOWER,
    TOWER_DEFAULTS,
    QwenTower,
    read_tower,
    require_sections,
)
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import Vision
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.mlp.spec import Mlp, mlp_slots
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

TOKEN = "<|image|>"
#: Whether queries and keys have norms: so in GLM-OCR, whose patches have no learned positions.
HAS_QK_NORM = "has_qk_norm"
_NAMES = {
    **NAMES,
    "pre_norm": f"{TOWER}post_conv_layernorm",
    "positions": f"{TOWER}embeddings.position_embedding",
    "post_norm": f"{TOWER}post_layernorm",
    "mixer.q_norm": "attn.q_norm",
    "mixer.k_norm": "attn.k_norm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
    "projector.merge": f"{TOWER}downsample",
    "projector.in": f"{TOWER}merger.proj",
    "projector.norm": f"{TOWER}merger.post_projection_norm",
    "projector.gate": f"{TOWER}merger.gate_proj",
    "projector.up": f"{TOWER}merger.up_proj",
    "projector.down": f"{TOWER}merger.down_proj",
}
#: Type of a config for text -> its family.
_TEXTS = {"glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe", "glm_ocr_text": "glm4"}
_TOWER_DEFAULTS = {
    **TOWER_DEFAULTS,
    "depth": 24,
    "hidden_size": 1536,
    "hidden_act": "silu",
    "num_heads": 12,
    "image_size": 336,
    "rms_norm_eps": 1e-5,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
}
_IMAGE_DEFAULTS = {
    **CLIP_IMAGES,
    "size": {"shortest_edge": 112**2, "longest_edge": 28**2 * 15_000},
}


@dataclass(frozen=True)
class ConvolvedMerger:
    """mlp(gelu(norm(in(x)))), where x is a convolution of `merge` x `merge` patches."""

    input_size: int
    merge: int
    norm: Norm
    mlp: Mlp


@vision_slots.register
def _(projector: ConvolvedMerger, hidden_size: int) -> Iterator[Slot]:
    square = (projector.merge,) * 2
    yield Slot("projector.merge", (hidden_size, projector.input_size, *square), "dense", bias=True)
    yield Slot("projector.in", (hidden_size, hidden_size))
    yield from norm_slots("projector.norm", hidden_size, projector.norm)
    yield from mlp_slots("projector", projector.mlp, hidden_size)


def read_glm(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config, images = configs.tower, configs.images
    require_sections(text, configs.model.where)
    if config.positive("out_hidden_size") != text.hidden_size:
        raise NotReadable(
            f"out_hidden_size is not {text.hidden_size}, that of the text", where=config.where
        )
    has_qk_norm = config.flag(HAS_QK_NORM, False)
    tower = _read_tower(config, has_qk_norm)
    frames, merge = tower.patches.frames, config.positive("spatial_merge_size")
    images.allow_only("temporal_patch_size", frames)
    layout = read_dynamic(images, tower.patches.size, merge, TOKEN)
    inner = 3 * text.hidden_size if has_qk_norm else config.positive("intermediate_size")
    return Vision(
        tower,
        ConvolvedMerger(
            tower.hidden_size,
            merge,
            Norm(1e-5, "layer", bias=True),
            Mlp(inner, config.activation()),
        ),
        replace(layout, frames=frames, grown="at_once"),
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id"),
        positions="multimodal",
    )


def _read_tower(config: Config, has_qk_norm: bool) -> QwenTower:
    norm, bias = read_norm(config), config.flag("attention_bias", has_qk_norm)
    # The width of MLPs is that of the text but for GLM-OCR, whose other maps have biases, too.
    inner = config.positive("intermediate_size" if has_qk_norm else "out_hidden_size")
    tower = read_tower(
        config,
        config.positive("hidden_size"),
        Mlp(inner, config.activation(), bias=bias and has_qk_norm),
        norm,
        qkv_bias=bias,
        out_bias=bias and has_qk_norm,
        qk_norm=norm if has_qk_norm else None,
    )
    return replace(
        tower,
        patches=replace(tower.patches, bias=True),
        norm=norm,
        pre_norm=None if has_qk_norm else norm,
        position_side=0 if has_qk_norm else read_edge(config, "image_size") // tower.patches.size,
        interpolation="cubic",
    )


def glm_family(
    name: str, text: str, token: int, tower: Mapping[str, Any] | None = None, **fields: Any
) -> VisionFamily:
    """A family with this tower, by the type of its text's config and the id of its image token."""
    return VisionFamily(
        name,
        read_glm,
        names=_NAMES,
        text=text,
        # Older configs have that of the text at the top.
        text_types={**_TEXTS, name: _TEXTS[text]},
        text_start="model.language_model.",
        head="lm_head",
        defaults={"image_token_id": token},
        tower_defaults={**_TOWER_DEFAULTS, **(tower or {})},
        image_defaults=_IMAGE_DEFAULTS,
        # The layer that predicts later tokens.
        ignored=("model.language_model.layers.{layers}.",),
        **fields,
    )


def _gguf_tower(clip: Config) -> dict[str, Any]:
    return {
        **gguf_tower(clip),
        "out_hidden_size": clip.positive("projection_dim"),
        "rms_norm_eps": clip.number("attention.layer_norm_epsilon"),
        "hidden_act": "gelu" if clip.values.get("use_gelu") else "silu",
        "attention_bias": clip.flag("has_joint_bias", False),
        "has_qk_norm": clip.flag("has_qk_norm", False),
    }


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "glm4v",
    {
        **GGUF_SIGLIP,
        "patches.1.weight": "v.patch_embd.weight.1",
        "pre_norm": "v.norm_embd",
        "mixer.qkv": "attn_qkv",
        "mixer.q_norm": "attn_q_norm",
        "mixer.k_norm": "attn_k_norm",
        "ffn.gate": "ffn_gate",
        "projector.merge": "mm.patch_merger",
        "projector.in": "mm.model.fc",
        "projector.norm": "mm.post_norm",
        "projector.gate": "mm.gate",
        "projector.up": "mm.up",
        "projector.down": "mm.down",
    },
    TOKEN,
    image_limits(112**2, 28**2 * 15_000),
    _gguf_tower,
    apart_frames,
    texts=("glm4", "glm4_moe"),
)


FAMILY = glm_family("glm4v", "glm4v_text", token=151_343, gguf=GGUF)
