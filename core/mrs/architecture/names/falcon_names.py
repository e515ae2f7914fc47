"""Names of Falcon's tensors, whose norms depend on how many a layer has."""

from __future__ import annotations

from collections.abc import Mapping

FALCON: Mapping[str, str] = {
    "embedding": "transformer.word_embeddings",
    "norm": "transformer.ln_f",
    "layer": "transformer.h.{layer}.",
    # With a norm each, or else one for both or a second one after attention.
    "mixer.norm": "ln_attn",
    "mixer.norm.weight": "input_layernorm.weight",
    "mixer.norm.bias": "input_layernorm.bias",
    "ffn.norm": "ln_mlp",
    "ffn.norm.weight": "post_attention_layernorm.weight",
    "ffn.norm.bias": "post_attention_layernorm.bias",
    "mixer.qkv_by_head": "self_attention.query_key_value",
    "mixer.o": "self_attention.dense",
    "ffn.up": "mlp.dense_h_to_4h",
    "ffn.down": "mlp.dense_4h_to_h",
}

GGUF_FALCON: Mapping[str, str] = {
    "mixer.norm": "attn_norm_2",
    "mixer.norm.weight": "attn_norm.weight",
    "mixer.norm.bias": "attn_norm.bias",
    "ffn.norm": "attn_norm",
}
