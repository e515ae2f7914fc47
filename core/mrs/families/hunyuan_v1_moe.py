"""Hunyuan MoE: Hunyuan with routed experts and a shared one in every layer."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import mlp_names
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_norm
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.families.hunyuan_v1_dense import NAMES, read_normed_attention


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    expert = read_expert(config, "intermediate_size")
    moe = Moe(read_router(config, norm_topk_prob=True), expert, shared=expert)
    layer = Layer(read_normed_attention(config), moe, norm)
    return decoder(config, "hunyuan_v1_moe", [layer] * layer_count(config), norm)


FAMILY = Family(
    "hunyuan_v1_moe",
    read,
    gguf_arch="hunyuan-moe",
    defaults={"rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1},
    safetensors={
        **NAMES,
        **mlp_names("ffn.shared", "mlp.shared_mlp"),
        "ffn.router": "mlp.gate.wg",
    },
)
