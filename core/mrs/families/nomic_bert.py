"""Nomic BERT: BERT with rope in place of learned positions, and a gated MLP without biases.

Published files have GPT-2's config keys (`n_embd`), and fuse q, k and v.
"""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.gpt2_keys import GPT2_KEYS
from mrs.config.layer_kinds import layer_count
from mrs.families.bert import DEFAULTS, GGUF_ENCODER, UNREAD_OF_ENCODERS
from mrs.layers.attention.config import read_encoder_attention, read_head_rope
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    config = config.renamed(GPT2_KEYS)
    config.allow_only("activation_function", "swiglu")
    config.allow_only("rotary_emb_fraction", 1)
    config.require_off("prenorm", "num_experts", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
    config.require_off("rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor")
    norm = read_layer_norm(config, default=1e-12)
    mixer = read_encoder_attention(config, rope=read_head_rope(config, default_base=1000.0))
    layer = Layer(mixer, read_mlp(config), norm, style="post_sum")
    tables = FirstInput(norm, token_types=config.integer("type_vocab_size"))
    return decoder(config, "nomic_bert", [layer] * layer_count(config), None, input=tables)


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
    gguf=GGUF_ENCODER,
    unread=UNREAD_OF_ENCODERS,
)
