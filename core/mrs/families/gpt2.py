"""GPT-2: learned positions, LayerNorm, and transposed matrices with q, k and v in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.gpt2_keys import GPT2_DEFAULTS, usual_config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention, read_heads
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    by_depth = config.flag("scale_attn_by_inverse_layer_idx", False)
    return read_gpt2(usual_config(config), "gpt2", by_depth=by_depth)


def read_gpt2(config: Config, family: str, *, by_depth: bool = False) -> ModelSpec:
    """A model of a config under the usual keys; `by_depth` divides scores by a layer's number."""
    config.require_off("add_cross_attention")
    norm = read_layer_norm(config)
    scale = read_heads(config)[2] ** -0.5 if config.flag("scale_attn_weights", True) else 1.0
    attention = read_attention(config, rope=None, qkv_bias=True, out_bias=True, scale=scale)
    activation = config.activation("gelu_new", "activation_function")
    layer = Layer(attention, read_mlp(config, activation=activation, gated=False, bias=True), norm)
    layers = [layer] * layer_count(config)
    if by_depth:
        scales = [scale / (index + 1) for index in range(len(layers))]
        layers = [replace(layer, mixer=replace(attention, scale=scale)) for scale in scales]
    positions = FirstInput(positions=config.positive("max_position_embeddings"))
    return decoder(config, family, layers, norm, input=positions)


#: Names in files that spell tensors as GPT-2 does: all but the matrices of a layer.
GPT2: Mapping[str, str] = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "layer": "transformer.h.{layer}.",
    "mixer.norm": "ln_1",
    "ffn.norm": "ln_2",
}


FAMILY = Family(
    "gpt2",
    read,
    gguf_arch="gpt2",
    defaults=GPT2_DEFAULTS,
    safetensors={
        **GPT2,
        "mixer.qkv": "attn.c_attn^T",
        "mixer.o": "attn.c_proj^T",
        "ffn.up": "mlp.c_fc^T",
        "ffn.down": "mlp.c_proj^T",
    },
)
