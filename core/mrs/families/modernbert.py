"""ModernBERT: an encoder with rope, a gated MLP, and full attention in every third layer.

The input of the first layer is normed already.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.encoder_input import EncoderInput
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm, Rope
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_encoder_attention,
    read_heads,
    read_layer_norm,
    read_mlp,
)
from mrs.architecture.readers.readout_reader import NamedReadout, read_classifier
from mrs.architecture.readers.rope_reader import read_rope
from mrs.architecture.readout import Dense, PoolingKind

_FULL, _LOCAL = "full_attention", "sliding_attention"
#: The config key of the base of each kind's rope, and its default.
_BASES = {_FULL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}


def read(config: Config) -> ModelSpec:
    norm = _read_norm(config)
    activation = config.activation("gelu", "hidden_activation")
    mlp = read_mlp(config, activation=activation, bias=config.flag("mlp_bias", False))
    bias = config.flag("attention_bias", False)
    window = config.positive("local_attention")
    layers = []
    for index, kind in enumerate(_kinds(config)):
        mixer = read_encoder_attention(
            config,
            rope=_rope(config, kind),
            window=window if kind == _LOCAL else None,
            qkv_bias=bias,
            out_bias=bias,
        )
        layers.append(Layer(mixer, mlp, norm, mixer_norm=index > 0))
    return decoder(config, "modernbert", layers, norm, input=EncoderInput(norm))


def _kinds(config: Config) -> list[str]:
    if config.has("layer_types"):
        return list(layer_types(config, _FULL, _LOCAL))
    period = config.positive("global_attn_every_n_layers", 3)
    return [_LOCAL if index % period else _FULL for index in range(layer_count(config))]


def _rope(config: Config, kind: str) -> Rope:
    key, default = _BASES[kind]
    base = config.number(key, default)
    return read_rope(config, read_heads(config)[2], default_base=base, layer_type=kind)


def classifier(config: Config) -> NamedReadout:
    """A dense layer with a norm on the first token or the mean of all, and the classes."""
    config.allow_only("classifier_activation", "gelu")
    config.allow_only("classifier_pooling", "cls", "mean")
    size, bias = config.positive("hidden_size"), config.flag("classifier_bias", False)
    kind: PoolingKind = "mean" if config.values.get("classifier_pooling") == "mean" else "cls"
    hidden = Dense(size, size, bias, "gelu", _read_norm(config))
    found = read_classifier(config, hidden, ("head.dense", "classifier"), kind)
    return found._replace(names={**found.names, "dense.0.norm": "head.norm"})


def _read_norm(config: Config) -> Norm:
    return read_layer_norm(config, "norm_eps", bias=config.flag("norm_bias", False))


FAMILY = Family(
    "modernbert",
    read,
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
    classifier=classifier,
    ignored=("head.", "decoder."),
)
