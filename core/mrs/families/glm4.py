"""GLM 4 (0414): pre- and post-norms, interleaved rope on half of each head."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import has_adjacent_pairs


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1.5625e-7)
    rope = read_head_rope(config, interleaved=has_adjacent_pairs(config))
    attention = read_attention(config, rope=rope, qkv_bias=config.flag("attention_bias", True))
    layer = Layer(attention, read_mlp(config), norm, style="sandwich")
    return decoder(config, "glm4", [layer] * layer_count(config), norm)


FAMILY = Family(
    "glm4",
    read,
    gguf_arch="glm4",
    defaults={"head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    safetensors={
        "mixer.post_norm": "post_self_attn_layernorm",
        "ffn.norm": "post_attention_layernorm",
        "ffn.post_norm": "post_mlp_layernorm",
        "ffn.gate_up": "mlp.gate_up_proj",
    },
    gguf={"ffn.gate_up": "ffn_up"},
    head=NEXTN,
    ignored=("blk.{layers}.",),
)
