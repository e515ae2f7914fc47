"""The decoder of Whisper (arXiv 2212.04356): learned positions, and attention to what is heard.

A layer of the file has three parts. Here it is two layers: self-attention alone, and
cross-attention with the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.spec import Attention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.empty.spec import NoFeedForward
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm

#: The norms of both halves of the model.
NORM = Norm(1e-5, "layer", bias=True)


def read(config: Config) -> ModelSpec:
    hidden, heads = config.positive("d_model"), config.positive("decoder_attention_heads")
    head_dim = config.head_dim(hidden, heads)
    sizes, scale = (heads, heads, head_dim), head_dim**-0.5
    attention = Attention(*sizes, scale, None, qkv_bias=True, out_bias=True, key_bias=False)
    hearing = CrossAttention(*sizes, scale, None, input_norm=NORM, bias=True)
    activation = config.activation("gelu", "activation_function")
    mlp = Mlp(config.positive("decoder_ffn_dim"), activation, gated=False, bias=True)
    pair = Layer(attention, NoFeedForward(), NORM), Layer(hearing, mlp, NORM, mixer_norm=False)
    count = layer_count(config, "decoder_layers")
    config.require_off("scale_embedding")
    tokens = config.positive("max_target_positions")
    sized = Config({**config.values, "hidden_size": hidden}, config.where)
    return decoder(
        sized,
        "whisper_decoder",
        pair * count,
        NORM,
        context_tokens=tokens,
        file_layers=tuple(index for index in range(count) for _ in pair),
        input=FirstInput(positions=tokens),
    )


#: Names that both halves of the model have in a layer.
LAYER_NAMES: Mapping[str, str] = {
    "mixer.norm": "self_attn_layer_norm",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.out_proj",
    "ffn.norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
}


FAMILY = Family(
    "whisper_decoder",
    read,
    defaults={
        "vocab_size": 51_865,
        "d_model": 384,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
        "max_target_positions": 448,
    },
    safetensors={
        **LAYER_NAMES,
        "embedding": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "norm": "model.decoder.layer_norm",
        "layer": "model.decoder.layers.{layer}.",
        "cross.input_norm": "encoder_attn_layer_norm",
        "cross.q": "encoder_attn.q_proj",
        "cross.k": "encoder_attn.k_proj",
        "cross.v": "encoder_attn.v_proj",
        "cross.o": "encoder_attn.out_proj",
    },
)
