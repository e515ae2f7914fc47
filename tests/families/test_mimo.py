"""MiMo V2 Flash as its published folder spells the config."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.mimo_v2_flash.configuration_mimo_v2_flash import MiMoV2FlashConfig

from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.families.mimo_v2_flash import FAMILY

_LAYERS = 13
#: Some of the keys of the published config.
PUBLISHED: dict[str, Any] = {
    "vocab_size": 152_576,
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5_000_000,
    "swa_rope_theta": 10_000,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "hybrid_layer_pattern": [int(n != 0 and (n + 1) % 6 != 0) for n in range(_LAYERS)],
    "moe_layer_freq": [int(n != 0) for n in range(_LAYERS)],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "layernorm_epsilon": 1e-5,
    "attention_value_scale": 0.707,
    "max_position_embeddings": 131_072,
}


def _read(values: dict[str, Any]) -> ModelSpec:
    return FAMILY.read(Config({**FAMILY.defaults, **values}, "a"))


def test_published_spelling() -> None:
    """Gives what transformers makes of it, and of a config that says nothing of all this."""
    theirs = MiMoV2FlashConfig(**PUBLISHED).to_dict()
    usual = {key: theirs[key] for key in theirs if key not in PUBLISHED or "layer" not in key}
    kept = ("sliding_window_size", "hybrid_layer_pattern", "moe_layer_freq")
    expected = _read({key: usual.get(key, theirs[key]) for key in theirs if key not in kept})
    assert _read(PUBLISHED) == expected
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    few = {key: PUBLISHED[key] for key in (*sizes, "num_attention_heads")}
    assert _read(few) == expected
    assert [layer.mixer.window for layer in expected.layers[:6]] == [None, *[129] * 4, None]


@pytest.mark.parametrize("key", ["swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads"])
def test_other_heads_in_windows_are_refused(key: str) -> None:
    with pytest.raises(Unsupported, match=key):
        _read({**PUBLISHED, key: 32})
