"""Names of the tensors of Mamba 2 mixers."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.names.mlp_names import mlp_names


def mamba2_names(module: str) -> Mapping[str, str]:
    """The names of a mixer in this module of a layer."""
    return {
        "mixer.in": f"{module}.in_proj",
        "mixer.conv": f"{module}.conv1d",
        "mixer.step_bias": f"{module}.dt_bias",
        "mixer.decay": f"{module}.A_log",
        "mixer.skip": f"{module}.D",
        "mixer.head_norm": f"{module}.norm",
        "mixer.out": f"{module}.out_proj",
    }


#: Layers with a mixer in one of two modules, and an MLP.
HYBRID_LAYERS: Mapping[str, str] = {
    "norm": "model.final_layernorm",
    **mamba2_names("mamba"),
    **mlp_names("ffn", "feed_forward"),
    "ffn.norm": "pre_ff_layernorm",
}

#: Layers of a single mixer each.
BACKBONE: Mapping[str, str] = {
    "embedding": "backbone.embeddings",
    "norm": "backbone.norm_f",
    "layer": "backbone.layers.{layer}.",
    **mamba2_names("mixer"),
    "mixer.norm": "norm",
}

GGUF_MAMBA2: Mapping[str, str] = {
    "mixer.in": "ssm_in",
    "mixer.conv": "ssm_conv1d",
    "mixer.skip": "ssm_d",
    "mixer.out": "ssm_out",
}
