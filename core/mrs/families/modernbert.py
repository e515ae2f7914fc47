"""ModernBERT: an encoder with rope, a gated MLP, and full attention in every third layer.

The input of the first layer is normed already.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.first_input import FirstInput
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.classifier_reader import read_normed_classifier
from mrs.architecture.readers.layer_reader import decoder, read_layer_norm, read_mlp
from mrs.architecture.readers.local_encoder_reader import read_local_encoder


def read(config: Config) -> ModelSpec:
    norm, activation = _read_norm(config), config.activation("gelu", "hidden_activation")
    mlp = read_mlp(config, activation=activation, bias=config.flag("mlp_bias", False))
    layers = [
        Layer(mixer, mlp, norm, mixer_norm=index > 0)
        for index, mixer in enumerate(read_local_encoder(config))
    ]
    return decoder(config, "modernbert", layers, norm, input=FirstInput(norm))


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
    classifier=lambda config: read_normed_classifier(config, _read_norm(config)),
    ignored=("head.", "decoder."),
)
