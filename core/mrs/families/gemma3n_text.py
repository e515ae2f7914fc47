"""Gemma 3n, text: several residual streams, per-layer embeddings, shared keys and values."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.altup_reader import ALTUP_GGUF_KEYS, read_altup, read_laurel
from mrs.architecture.readers.layer_reader import biased_attention, read_norm, ropes_and_windows
from mrs.architecture.readers.shared_layers_reader import (
    SHARED_LAYERS_GGUF_KEYS,
    per_layer_decoder,
    share_kv,
)
from mrs.architecture.readers.sparse_mlp_reader import SPARSE_MLP_GGUF_KEYS, read_sparse_mlps


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    fields = {"scale": 1.0, "qk_norm": norm, "value_norm": norm}
    attention = [
        biased_attention(config, rope=rope, window=window, **fields)
        for rope, window in ropes_and_windows(config, period=5)
    ]
    mixers, mlps = share_kv(config, attention), read_sparse_mlps(config)
    altup, laurel = read_altup(config, norm), read_laurel(config, norm)
    return per_layer_decoder(config, "gemma3n_text", mixers, mlps, norm, altup=altup, laurel=laurel)


FAMILY = Family(
    "gemma3n_text",
    read,
    gguf_arch="gemma3n",
    aliases=("gemma3n",),
    defaults={
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 15,
    },
    safetensors={"ffn.norm": "pre_feedforward_layernorm"},
    gguf_keys={**SHARED_LAYERS_GGUF_KEYS, **ALTUP_GGUF_KEYS, **SPARSE_MLP_GGUF_KEYS},
)
