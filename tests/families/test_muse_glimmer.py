"""Configs of Muse Glimmer: the published factors, and which layers have windows and rope."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig

from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.families.muse_glimmer_text import FAMILY

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)


def _read(values: dict[str, Any]):
    return FAMILY.read(Config({**FAMILY.defaults, **values}, "a"))


@pytest.mark.parametrize("layers", [1, 4, 52, 54])
def test_defaults_are_those_of_transformers(layers: int) -> None:
    """With a factor of queries that tests with random weights in bf16 are too coarse for."""
    full = MuseGlimmerTextConfig(num_hidden_layers=layers).to_dict()
    spec = _read({key: full[key] for key in REQUIRED})
    assert spec == _read(full)
    assert spec.layers[0].mixer.scale == pytest.approx(3.87 / 128**0.5)
    whole = [layer for layer, each in enumerate(spec.layers) if each.mixer.window is None]
    assert whole == [layer for layer, each in enumerate(spec.layers) if each.mixer.rope is None]
    assert whole == [*range((layers - 1) % 4, layers, 4)]


def test_a_base_of_its_own_is_refused() -> None:
    """transformers says that it would count, but computes all layers with one base."""
    full = MuseGlimmerTextConfig(num_hidden_layers=2, layer_rope_theta=[5e4, 0]).to_dict()
    with pytest.raises(Unsupported, match="layer_rope_theta"):
        _read(full)
