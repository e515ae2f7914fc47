"""GLM 5: DeepSeek V3.2 with other sizes, whose indexer has adjacent rotary pairs.

In GLM 5.2, most layers attend to the tokens that an earlier one has chosen.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.borrowed_choice_reader import lending_and_borrowing
from mrs.architecture.readers.mla_reader import read_indexed_attention
from mrs.families import deepseek_v32
from mrs.families.deepseek_v2 import read_deepseek


def read(config: Config) -> ModelSpec:
    own = read_indexed_attention(config, interleaved=True)
    return read_deepseek(config, "glm_moe_dsa", lending_and_borrowing(config, own))


FAMILY = Family(
    "glm_moe_dsa",
    read,
    gguf_arch="glm-dsa",
    defaults={
        **deepseek_v32.DEFAULTS,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "num_hidden_layers": 78,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
    },
    safetensors=deepseek_v32.NAMES,
    gguf=deepseek_v32.GGUF_NAMES,
    gguf_keys=deepseek_v32.INDEXER_GGUF_KEYS,
    # The multi-token prediction layer.
    ignored=("model.layers.{layers}.", "blk.{layers}."),
)
