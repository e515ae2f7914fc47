"""Nomic BERT: BERT with rope in place of learned positions, and a gated MLP without biases.

Published files have GPT-2's config keys (`n_embd`), and fuse q, k and v.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.encoder_input import EncoderInput
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_encoder_attention,
    read_heads,
    read_layer_norm,
    read_mlp,
)
from mrs.architecture.readers.rope_reader import read_rope
from mrs.families.bert import DEFAULTS, GGUF_KEYS, GGUF_NAMES, IGNORED

#: The published spelling of config keys.
_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


def read(config: Config) -> ModelSpec:
    published = {_KEYS[key]: value for key, value in config.values.items() if key in _KEYS}
    config = Config({**config.values, **published}, config.where)
    for key, supported in _SUPPORTED.items():
        config.allow_only(key, *supported)
    norm = read_layer_norm(config, default=1e-12)
    rope = read_rope(config, read_heads(config)[2], default_base=1000.0)
    mixer = read_encoder_attention(config, rope=rope)
    layer = Layer(mixer, read_mlp(config), norm, style="post_sum")
    tables = EncoderInput(norm, token_types=config.integer("type_vocab_size"))
    return decoder(config, "nomic_bert", [layer] * layer_count(config), None, input=tables)


_SUPPORTED = {
    "activation_function": ("swiglu",),
    "prenorm": (False,),
    "rotary_emb_fraction": (1, 1.0),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (),
    "rotary_scaling_factor": (),
    "num_experts": (0,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
}

FAMILY = Family(
    "nomic_bert",
    read,
    gguf_arch="nomic-bert",
    defaults={**DEFAULTS, "vocab_size": 30_528, "max_position_embeddings": 2048},
    safetensors={
        "embedding": "nomic_bert.embeddings.word_embeddings",
        "token_types": "nomic_bert.embeddings.token_type_embeddings",
        "input_norm": "nomic_bert.emb_ln",
        "layer": "nomic_bert.encoder.layers.{layer}.",
        "mixer.qkv": "attn.Wqkv",
        "mixer.o": "attn.out_proj",
        "mixer.post_norm": "norm1",
        "ffn.gate": "mlp.fc12",
        "ffn.up": "mlp.fc11",
        "ffn.down": "mlp.fc2",
        "ffn.post_norm": "norm2",
    },
    gguf=GGUF_NAMES,
    gguf_keys=GGUF_KEYS,
    ignored=IGNORED,
)
