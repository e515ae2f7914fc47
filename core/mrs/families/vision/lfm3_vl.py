"""LFM3-VL: images and videos of nearly their own size, encoded by convolutions and attention."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.dynamic_layout import read_dynamic
from mrs.architecture.vision.image_layouts import read_edge
from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.towers.qwen_tower import IMAGE_DEFAULTS, TOKEN, QwenTower
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.video_reader import read_stamped
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Patches, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, layer_count, layer_types
from mrs.errors import NotReadable
from mrs.families.vision.qwen3_vl import VIDEO_DEFAULTS
from mrs.layers.attention.spec import Attention
from mrs.layers.grid_convolution.spec import GridConvolution
from mrs.layers.layer import Layer
from mrs.layers.mixer import Mixer
from mrs.layers.mlp.spec import Mlp, numbered_mlp_names
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.short_convolution.config import CONVOLUTION

TOWER = "model.vision_tower."
#: Slot -> module name.
TOWER_NAMES = {
    "patches": f"{TOWER}patchifier",
    "pre_norm": f"{TOWER}embedding_norm",
    "layer": f"{TOWER}layers.{{layer}}.",
    "mixer.norm": "operator_norm",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.out_proj",
    "mixer.q_norm": "self_attn.q_layernorm",
    "mixer.k_norm": "self_attn.k_layernorm",
    "mixer.in": "conv.in_proj",
    "mixer.conv": "conv.spatial_conv",
    "mixer.out": "conv.out_proj",
    "ffn.norm": "ffn_norm",
    **numbered_mlp_names("ffn", "feed_forward"),
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 2560,
    "num_hidden_layers": 14,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "norm_eps": 1e-5,
}


def read_tower(tower: Config) -> QwenTower:
    tower.allow_only("in_channels", 3)
    hidden, norm = tower.positive("hidden_size"), read_norm(tower, "norm_eps")
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    rope.allow_only("rope_type", "axial")
    mixers: dict[str, Mixer] = {
        FULL: _read_attention(tower, hidden, norm),
        CONVOLUTION: GridConvolution(hidden, _read_side(tower)),
    }
    mlp, frames = Mlp(tower.positive("intermediate_size")), read_edge(tower, "temporal_patch_size")
    return QwenTower(
        hidden,
        Patches(read_edge(tower, "patch_size"), frames=frames, flat=True),
        layers=tuple(Layer(mixers[kind], mlp, norm) for kind in _kinds(tower)),
        rope_base=rope.positive_number("rope_theta", 1e6, above=1),
        pre_norm=norm,
    )


def _read_attention(tower: Config, hidden: int, norm: Norm) -> Attention:
    heads, kv_heads = tower.positive("num_attention_heads"), tower.positive("num_key_value_heads")
    head_dim = tower.head_dim(hidden, heads)
    require_two_axes(head_dim, tower.where)
    if heads % kv_heads:
        raise NotReadable(
            f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}",
            where=tower.where,
        )
    return Attention(heads, kv_heads, head_dim, head_dim**-0.5, None, qk_norm=norm)


def _read_side(tower: Config) -> int:
    side = tower.positive("conv_kernel_size", 3)
    if side % 2 == 0:
        raise NotReadable(f"conv_kernel_size = {side} is not odd", where=tower.where)
    return side


def _kinds(tower: Config) -> Sequence[str]:
    """Without a list, the first two layers and every second one after them are convolutions."""
    if tower.has("layer_types"):
        return layer_types(tower, CONVOLUTION, FULL)
    return [CONVOLUTION if layer < 2 or layer % 2 else FULL for layer in range(layer_count(tower))]


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, tower = configs.model, read_tower(configs.tower)
    merge, token = configs.tower.positive("spatial_merge_size"), model.integer("video_token_id")
    layout = read_dynamic(configs.images, tower.patches.size, merge, TOKEN)
    projector = PatchMerger(
        tower.hidden_size,
        merge,
        Norm(1e-6, "layer", bias=True),
        inner=model.positive("projector_hidden_size"),
        activation=model.activation("gelu", "projector_hidden_act"),
        bias=model.flag("projector_bias", True),
    )
    video = read_stamped(configs.videos, layout, tower.patches.frames, token)
    image_token = model.integer("image_token_id")
    return Vision(tower, projector, layout, TOKEN, image_token, video=video)


DEFAULTS = {"image_token_id": 125_030, "video_token_id": 125_029, "projector_hidden_size": 4096}

PROJECTOR = "model.multi_modal_projector."

FAMILY = VisionFamily(
    "lfm3_vl",
    read,
    names={
        **TOWER_NAMES,
        "projector.norm": f"{PROJECTOR}layer_norm",
        "projector.up": f"{PROJECTOR}linear_1",
        "projector.down": f"{PROJECTOR}linear_2",
    },
    text="lfm3",
    text_start="model.language_model.",
    head="lm_head",
    defaults=DEFAULTS,
    tower_defaults=TOWER_DEFAULTS,
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
)
