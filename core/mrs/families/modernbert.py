"""ModernBERT: an encoder with rope, a gated MLP, and full attention in every third layer.

The input of the first layer is normed already.
"""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.gguf_config import PATTERN
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler_config import read_normed_classifier
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, layer_count, layer_types
from mrs.layers.attention.config import read_biases, read_encoder_attention, read_head_rope
from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm
from mrs.layers.norm.spec import Norm

#: The config key of the base of each kind's rope, and its default.
_BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


#: Of GGUF files: after how many layers comes the next one with full attention.
_PERIOD = "full_attention_period"


def read(config: Config) -> ModelSpec:
    if config.has(_PERIOD):
        config = _usual_config(config)
    norm, activation = _read_norm(config), config.activation("gelu", "hidden_activation")
    mlp = read_mlp(config, activation=activation, bias=config.flag("mlp_bias", False))
    layers = [
        Layer(mixer, mlp, norm, mixer_norm=index > 0)
        for index, mixer in enumerate(read_local_encoder(config))
    ]
    return decoder(config, "modernbert", layers, norm, input=FirstInput(norm))


def _usual_config(config: Config) -> Config:
    """The config under the keys of config.json, of a GGUF file, where it has other rules."""
    is_listed = not isinstance(config.values[_PERIOD], int)
    period = {} if is_listed else {"global_attn_every_n_layers": config.positive(_PERIOD)}
    return config.without("rope_theta", *(() if is_listed else ("layer_types",))).changed(period)


def _read_norm(config: Config) -> Norm:
    return read_layer_norm(config, "norm_eps", bias=config.flag("norm_bias", False))


def read_local_encoder(config: Config) -> list[EncoderAttention]:
    """The attention of each layer; the first of every few layers attends to all tokens."""
    if config.has("layer_types"):
        kinds = list(layer_types(config, FULL, SLIDING))
    else:
        period = config.positive("global_attn_every_n_layers", 3)
        kinds = [SLIDING if index % period else FULL for index in range(layer_count(config))]
    return [_read_attention(config, kind) for kind in kinds]


def _read_attention(config: Config, kind: str) -> EncoderAttention:
    key, default = _BASES[kind]
    rope = read_head_rope(config, default_base=config.number(key, default), layer_type=kind)
    window = config.positive("local_attention")
    return read_encoder_attention(
        config, rope=rope, window=window if kind == SLIDING else None, **read_biases(config)
    )


FAMILY = Family(
    "modernbert",
    read,
    gguf_arch="modern-bert",
    defaults={
        "vocab_size": 50_368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "local_attention": 128,
    },
    safetensors={
        "embedding": "model.embeddings.tok_embeddings",
        "input_norm": "model.embeddings.norm",
        "norm": "model.final_norm",
        "mixer.norm": "attn_norm",
        "mixer.qkv": "attn.Wqkv",
        "mixer.o": "attn.Wo",
        "ffn.norm": "mlp_norm",
        "ffn.gate_up": "mlp.Wi",
        "ffn.down": "mlp.Wo",
    },
    gguf={"ffn.gate_up": "ffn_up"},
    gguf_keys={
        _PERIOD: PATTERN,
        "local_attention": "attention.sliding_window",
        "global_rope_theta": "rope.freq_base",
        "local_rope_theta": "rope.freq_base_swa",
        "hidden_activation": "hidden_activation",
    },
    gguf_defaults={_PERIOD: 3},
    classifier=lambda config: read_normed_classifier(config, _read_norm(config)),
    unread=("head.", "decoder."),
)
