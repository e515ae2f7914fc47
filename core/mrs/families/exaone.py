"""EXAONE 3.0 to 3.5 and Deep: Llama under the names of GPT-2."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm

#: Keys of the published configs -> the usual ones.
_KEYS = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}


def read(config: Config) -> ModelSpec:
    config = config.renamed(_KEYS)
    norm = read_norm(config, default=1e-5)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    layer = Layer(biased_attention(config), mlp, norm)
    return decoder(config, "exaone", [layer] * layer_count(config), norm)


FAMILY = Family(
    "exaone",
    read,
    gguf_arch="exaone",
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 4096, "rope_theta": 5e5},
    safetensors={
        "embedding": "transformer.wte",
        "norm": "transformer.ln_f",
        "layer": "transformer.h.{layer}.",
        "mixer.norm": "ln_1",
        "mixer.q": "attn.attention.q_proj",
        "mixer.k": "attn.attention.k_proj",
        "mixer.v": "attn.attention.v_proj",
        "mixer.o": "attn.attention.out_proj",
        "ffn.norm": "ln_2",
        "ffn.gate": "mlp.c_fc_0",
        "ffn.up": "mlp.c_fc_1",
        "ffn.down": "mlp.c_proj",
    },
)
