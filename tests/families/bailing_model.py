"""Ling 2 as transformers' class for Sarvam computes it: transformers has Ling 2 itself nowhere."""

from __future__ import annotations

from typing import Any

import transformers
from huggingface_hub.dataclasses import strict
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)


@strict(accept_kwargs=True)
class BailingMoeV2Config(transformers.SarvamMoEConfig):
    model_type = "bailing_moe_v2"
    default_theta = 10_000.0

    rms_norm_eps: float = 1e-5
    n_group: int = 8
    topk_group: int = 4

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**{"partial_rotary_factor": 0.5, **kwargs})


class BailingMoeV2ForCausalLM(transformers.Glm4MoeForCausalLM):
    config_class = BailingMoeV2Config


def register() -> None:
    """Make transformers know the type, with the tensor names of Sarvam's files, which it shares."""
    transformers.AutoConfig.register("bailing_moe_v2", BailingMoeV2Config, exist_ok=True)
    names = get_checkpoint_conversion_mapping("sarvam_moe")
    assert names is not None
    register_checkpoint_conversion_mapping("bailing_moe_v2", names, overwrite=True)
