"""Nomic's BERT with experts in every few layers, as GGUF files have it.

Experts have no gate, and other matrices a bias. llama.cpp leaves out the bias of all experts
together, which files of safetensors have.
"""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.bert import GGUF_ENCODER
from mrs.layers.attention.config import read_biases, read_encoder_attention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.config import read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_layer_norm

_PERIOD = "moe_every_n_layers"


def read(config: Config) -> ModelSpec:
    norm, period = read_layer_norm(config), config.integer(_PERIOD, 0)
    mixer = read_encoder_attention(config, **read_biases(config))
    expert = read_mlp(config, activation="gelu", gated=False)
    dense: Mlp = read_mlp(config, activation="gelu", gated=False, bias=config.flag("mlp_bias"))
    layers = [
        Layer(mixer, _feed_forward(config, dense, expert, has_experts), norm, style="post_sum")
        for has_experts in (period > 0 and n % period == 1 for n in range(layer_count(config)))
    ]
    tables = FirstInput(norm, token_types=config.integer("type_vocab_size", 0))
    return decoder(config, "nomic_bert_moe", layers, None, input=tables)


def _feed_forward(config: Config, dense: Mlp, expert: Mlp, has_experts: bool) -> Mlp | Moe:
    return Moe(read_router(config), expert) if has_experts else dense


FAMILY = Family(
    "nomic_bert_moe",
    read,
    gguf_arch="nomic-bert-moe",
    gguf=GGUF_ENCODER,
    gguf_keys={_PERIOD: _PERIOD},
)
