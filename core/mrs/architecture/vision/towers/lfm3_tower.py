"""LFM 3's vision tower: convolutions over the grid of patches, and attention in some layers."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.grid_convolution_spec import GridConvolution
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.names.mlp_names import numbered_mlp_names
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import FULL, layer_count, layer_types
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.readers.short_convolution_reader import CONVOLUTION
from mrs.architecture.vision.image_layouts import read_edge
from mrs.architecture.vision.towers.qwen_tower import QwenTower
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision_spec import Patches
from mrs.errors import NotReadable

TOWER = "model.vision_tower."
#: Slot -> module name.
LFM3_TOWER_NAMES = {
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
LFM3_TOWER_DEFAULTS = {
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


def read_lfm3_tower(tower: Config) -> QwenTower:
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
