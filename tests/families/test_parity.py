"""Every family gives the numbers of transformers, however the tokens arrive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from every_path import SafetensorsChecks
from parity_cases import CASES, REPRESENTATIVES
from reference import REPLY_TOKENS, Reference
from running import (
    Loaded,
)

from mrs.architecture.describe import describe
from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.request import ModelSource, Sampling
from mrs.source.find import open_checkpoint
from support.module_kinds import module_kinds

#: What bf16 may change, if it is more than usual: some do not scale their scores, and for others
#: the rounding of cached keys changes which tokens an indexer chooses.
BF16_TOLERANCES = {"gemma3n": 0.15, "gemma4": 0.15}
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS)


@pytest.mark.full
def test_representatives_have_every_kind_of_layer(references) -> None:
    """But encoders, which have tests of their own."""
    chosen = [case for case in CASES if case.id in REPRESENTATIVES]
    assert len(chosen) == len(REPRESENTATIVES)
    found = set()
    for case in chosen:
        source = ModelSource(str(references(case).folder), "safetensors")
        for layer in describe(open_checkpoint(source)).spec.layers:
            found |= {type(layer.mixer), type(layer.feed_forward)}
    of_encoders = {kind for kind in module_kinds() if issubclass(kind, EncoderAttention)}
    assert found == module_kinds() - {CrossAttention} - of_encoders


class TestFamilies(SafetensorsChecks):
    """The checks of `every_path.py`, of every configuration."""


@pytest.mark.table("config")
def test_config_as_transformers_4_spells_it(
    model: Loaded, truth: Reference, tmp_path: Path
) -> None:
    config = json.loads((truth.folder / "config.json").read_text())
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {})
    if _kind(config) == "proportional" or "partial_rotary_factor" in local:
        pytest.skip("transformers 4 has no such rope")
    old = _as_transformers_4(config)
    for key in _follows_from_the_rest(truth, config):
        del old[key]
    described = describe_with(truth.folder, old, tmp_path)
    assert described == model.description


@pytest.mark.table("config")
def test_config_without_what_is_default(model: Loaded, truth: Reference, tmp_path: Path) -> None:
    """What a config.json leaves out has the value that transformers' class gives it."""
    config = json.loads((truth.folder / "config.json").read_text())
    defaults = type(truth.config)().to_dict()
    sparse = {
        key: value
        for key, value in config.items()
        if key == "model_type" or key not in defaults or defaults[key] != value
    }
    assert len(sparse) < len(config)
    assert describe_with(truth.folder, sparse, tmp_path) == model.description


def describe_with(folder: Path, config: Mapping[str, Any], copy: Path):
    shutil.copy(folder / "model.safetensors", copy)
    (copy / "config.json").write_text(json.dumps(config))
    return describe(open_checkpoint(ModelSource(str(copy), "safetensors")))


def _as_transformers_4(config: dict[str, Any]) -> dict[str, Any]:
    old = dict(config)
    rope = old.pop("rope_parameters", None)
    old["torch_dtype"] = old.pop("dtype")
    if rope is None:
        return old
    if "full_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    rope = dict(rope)
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope.pop("rope_type") == "default" and not rope:
        old["rope_scaling"] = None
    else:
        old["rope_scaling"] = {**rope, "type": _kind(config)}
    return old


def _follows_from_the_rest(truth: Reference, config: dict[str, Any]) -> list[str]:
    """Lists by layer that older configs leave to the reader."""
    if "layer_types" in config and config.get("sliding_window", 1) is None:
        return []  # EXAONE 4's class cannot derive them
    keys = [key for key in ("layer_types", "no_rope_layers") if key in config]
    stated = {k: v for k, v in truth.case.config.items() if k in config and k not in keys}
    derived = transformers.AutoConfig.for_model(truth.case.family, **stated).to_dict()
    return [key for key in keys if derived[key] == config[key]]


def _kind(config: dict[str, Any]) -> str:
    rope = config.get("rope_parameters") or {"rope_type": None}
    return rope.get("full_attention", rope)["rope_type"]
