"""GPT BigCode (StarCoder 1): GPT-2 whose heads share one key head, with ordinary matrices."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.gpt2_keys import GPT2_DEFAULTS, usual_config
from mrs.families.gpt2 import GPT2, read_gpt2


def read(config: Config) -> ModelSpec:
    usual = usual_config(config)
    if config.flag("multi_query", False):
        usual = usual.changed({"num_key_value_heads": 1})
    return read_gpt2(usual, "gpt_bigcode")


FAMILY = Family(
    "gpt_bigcode",
    read,
    gguf_arch="starcoder",
    defaults={
        **GPT2_DEFAULTS,
        "multi_query": True,
        "activation_function": "gelu_pytorch_tanh",
    },
    safetensors={
        **GPT2,
        "mixer.qkv_by_head": "attn.c_attn",
        "mixer.o": "attn.c_proj",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
    },
)
