"""GPT-NeoX and Pythia: attention and MLP in parallel, with a norm each, and biases everywhere."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    config = config.renamed(
        {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    )
    norm = read_layer_norm(config)
    mlp = read_mlp(config, activation=config.activation("gelu"), gated=False, bias=True)
    is_parallel = config.flag("use_parallel_residual", True)
    attention = biased_attention(config)
    layer = Layer(attention, mlp, norm, style="parallel_norms" if is_parallel else "pre")
    return decoder(config, "gpt_neox", [layer] * layer_count(config), norm)


FAMILY = Family(
    "gpt_neox",
    read,
    gguf_arch="gptneox",
    defaults={"attention_bias": True, "partial_rotary_factor": 0.25},
    safetensors={
        "embedding": "gpt_neox.embed_in",
        "norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        "layer": "gpt_neox.layers.{layer}.",
        "mixer.qkv_by_head": "attention.query_key_value",
        "mixer.o": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
    },
    gguf_keys={"use_parallel_residual": "use_parallel_residual"},
)
