"""Names of the tensors of Mamba 2 mixers."""

from __future__ import annotations

from collections.abc import Mapping


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


GGUF_MAMBA2: Mapping[str, str] = {
    "mixer.in": "ssm_in",
    "mixer.conv": "ssm_conv1d",
    "mixer.skip": "ssm_d",
    "mixer.out": "ssm_out",
}
