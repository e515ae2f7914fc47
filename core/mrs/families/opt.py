"""OPT: learned positions that begin at row 2, LayerNorm, and an MLP with ReLU.

That of 350m has its norms after the sums, no norm at the end, and narrower embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.spec import Norm

#: Rows of the table of positions before that of a text's first token.
FIRST_POSITION = 2


def read(config: Config) -> ModelSpec:
    affine = config.flag("layer_norm_elementwise_affine", True)
    bias = config.flag("enable_bias", True)
    norm = Norm(1e-5, kind="layer", bias=affine, learned=affine)
    activation = config.activation("relu", "activation_function")
    mlp = read_mlp(config, "ffn_dim", activation=activation, gated=False, bias=bias)
    attention = read_attention(config, rope=None, qkv_bias=bias, out_bias=bias)
    tokens = config.positive("max_position_embeddings")
    positions = FirstInput(positions=tokens + FIRST_POSITION, first_position=FIRST_POSITION)
    before = config.flag("do_layer_norm_before", True)
    layer = Layer(attention, mlp, norm, style="pre" if before else "post_sum")
    last = norm if before and not config.flag("_remove_final_layer_norm", False) else None
    width = config.positive("word_embed_proj_dim", config.positive("hidden_size"))
    size = None if width == config.positive("hidden_size") else width
    layers = [layer] * layer_count(config)
    return decoder(config, "opt", layers, last, input=positions, embedding_size=size)


NAMES: Mapping[str, str] = {
    "embedding": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "embedding_in": "model.decoder.project_in",
    "embedding_out": "model.decoder.project_out",
    "norm": "model.decoder.final_layer_norm",
    "layer": "model.decoder.layers.{layer}.",
    "mixer.norm": "self_attn_layer_norm",
    "mixer.post_norm": "self_attn_layer_norm",
    "mixer.o": "self_attn.out_proj",
    "ffn.norm": "final_layer_norm",
    "ffn.post_norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
}


FAMILY = Family(
    "opt",
    read,
    defaults={
        "vocab_size": 50_272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    safetensors=NAMES,
)
