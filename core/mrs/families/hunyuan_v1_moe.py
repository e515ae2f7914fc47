"""Hunyuan MoE: Hunyuan with routed experts and a shared one in every layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.hunyuan_v1_dense import NAMES, read_normed_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import mlp_names
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


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
