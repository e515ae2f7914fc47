"""Names of the tensors of the first Mamba's mixers."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.names.mamba2_names import GGUF_MAMBA2, mamba2_names


def mamba_names(module: str) -> Mapping[str, str]:
    """The names of a mixer in this module of a layer."""
    return {
        **mamba2_names(module),
        "mixer.x": f"{module}.x_proj",
        "mixer.step": f"{module}.dt_proj",
        "mixer.step_bias": f"{module}.dt_proj.bias",
        "mixer.step_norm": f"{module}.dt_layernorm",
        "mixer.b_norm": f"{module}.b_layernorm",
        "mixer.c_norm": f"{module}.c_layernorm",
    }


GGUF_MAMBA: Mapping[str, str] = {
    **GGUF_MAMBA2,
    "mixer.x": "ssm_x",
    "mixer.step": "ssm_dt",
    "mixer.step_norm": "ssm_dt_norm",
    "mixer.b_norm": "ssm_b_norm",
    "mixer.c_norm": "ssm_c_norm",
}
