"""GPT-J: attention and MLP in parallel, interleaved rope on a part of each head."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.gpt2_keys import usual_config
from mrs.config.layer_kinds import layer_count
from mrs.families.gpt2 import GPT2
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    config = usual_config(config)
    norm, rope = read_layer_norm(config), read_head_rope(config, interleaved=True)
    activation = config.activation("gelu_new", "activation_function")
    mlp = read_mlp(config, activation=activation, gated=False, bias=True)
    layer = Layer(read_attention(config, rope=rope), mlp, norm, style="parallel")
    return decoder(config, "gptj", [layer] * layer_count(config), norm, head_bias=True)


FAMILY = Family(
    "gptj",
    read,
    defaults={
        "vocab_size": 50_400,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "n_positions": 2048,
        "rotary_dim": 64,
    },
    safetensors={
        **GPT2,
        "mixer.q": "attn.q_proj",
        "mixer.k": "attn.k_proj",
        "mixer.v": "attn.v_proj",
        "mixer.o": "attn.out_proj",
        "ffn.up": "mlp.fc_in",
        "ffn.down": "mlp.fc_out",
    },
)
