"""OLMo Hybrid: gated delta nets behind a norm each, and layers of OLMo 2 among them."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, LINEAR, attention_layers, every
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.gated_delta_net.config import read_delta_net
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.config import has_rope

#: Projections beside those of attention in other layers, and three convolutions.
OLMO_DELTA_NET: Mapping[str, str] = {
    **{f"mixer.{part}.weight": f"linear_attn.{part}_proj.weight" for part in "qkv"},
    **{f"mixer.conv_{part}": f"linear_attn.{part}_conv1d" for part in "qkv"},
    "mixer.z": "linear_attn.g_proj",
    "mixer.beta": "linear_attn.b_proj",
    "mixer.step": "linear_attn.a_proj",
    "mixer.head_norm": "linear_attn.o_norm",
    "mixer.out": "linear_attn.o_proj",
}


def with_derived_heads(config: Config) -> Config:
    """The config with all sizes of delta nets, those that it lacks by the heads of attention."""
    heads = config.positive("num_attention_heads")
    key_heads = config.positive("linear_num_key_heads", heads)
    usual = config.positive("hidden_size") * 3 // (4 * key_heads)
    key_dim = config.positive("linear_key_head_dim", usual)
    sizes = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": config.positive("linear_num_value_heads", heads),
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": config.positive("linear_value_head_dim", 2 * key_dim),
    }
    return config.changed(sizes)


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config)
    rope = read_head_rope(config) if has_rope(config) else None
    scale = 2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0
    # The norm of heads has an epsilon of its own, which configs do not have.
    delta_net = read_delta_net(with_derived_heads(config), norm=Norm(1e-5), beta_scale=scale)
    attention = biased_attention(config, rope=rope, qk_norm=norm, qk_norm_whole=True)
    linear = Layer(delta_net, mlp, norm)
    full = Layer(attention, mlp, norm, style="post")
    has_attention = attention_layers(config, FULL, LINEAR)
    if has_attention is None:
        has_attention = every(config, 4)
        has_attention[-1] |= not any(has_attention)
    layers = [full if attends else linear for attends in has_attention]
    return decoder(config, "olmo_hybrid", layers, norm)


FAMILY = Family(
    "olmo_hybrid",
    read,
    defaults={"max_position_embeddings": 65_536},
    safetensors={
        **OLMO_DELTA_NET,
        # What files may call their norms; transformers writes the last one, too.
        "mixer.norm.weight": "attention_layer_norm.weight",
        "ffn.norm.weight": "feedforward_layer_norm.weight",
        "mixer.post_norm.weight": "feedforward_layer_norm.weight",
    },
)
