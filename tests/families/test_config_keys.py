"""Keys of config.json that nobody looks up are named in a warning, unless they shape no results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity_cases import CASES, Case
from transformers_reference import new_model, save

from mrs.architecture.describe import describe
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

#: One model of each family.
FIRST = {case.family: case for case in reversed(CASES)}
LINE = "keys of config.json that are not used: "

Save = Callable[[Case], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Save:
    def made(case: Case) -> Path:
        folder = tmp_path_factory.mktemp("model")
        config = transformers.AutoConfig.for_model(case.family, **case.config)
        with torch.no_grad():
            save(new_model(case, config), folder)
        return folder

    return made


def warnings(folder: Path, **changes: Any) -> tuple[str, ...]:
    """The warnings about a folder, with some of the keys of its config changed."""
    file = folder / "config.json"
    text = file.read_text()
    file.write_text(json.dumps({**json.loads(text), **changes}))
    try:
        return describe(open_checkpoint(ModelSource(str(folder), "safetensors"))).warnings
    finally:
        file.write_text(text)


@pytest.mark.full
@pytest.mark.parametrize("family", sorted(FIRST))
def test_what_transformers_saves_is_read_without_a_word(family: str, saved: Save) -> None:
    folder = saved(FIRST[family])
    assert warnings(folder) == ()
    assert warnings(folder, head_gain=2.0) == (f"{LINE}head_gain",)


@pytest.fixture(scope="module")
def llama(saved: Save) -> Path:
    return saved(next(case for case in CASES if case.id == "llama-default"))


@pytest.mark.parametrize(
    "key",
    [
        "attn_logit_softcapping",
        "attention_multiplier",
        "clip_qkv",
        "embedding_multiplier",
        "final_logit_softcapping",
        "logit_scale",
        "logits_scaling",
        "residual_multiplier",
        "rope_interleave_by",
        "softmax_scale",
    ],
)
def test_a_factor_that_the_family_does_not_have_is_named(llama: Path, key: str) -> None:
    assert warnings(llama, **{key: 8.0}) == (f"{LINE}{key}",)
    assert warnings(llama, **{key: None}) == ()


def test_an_unknown_parameter_of_rope_is_named_with_its_object(llama: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "spiral_turns": 3}
    assert warnings(llama, rope_parameters=rope) == (f"{LINE}rope_parameters.spiral_turns",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_name_or_path", "somebody/model"),
        ("attention_dropout", 0.1),
        ("auto_map", {"AutoModel": "modeling.Model"}),
        ("ep_size", 8),
        ("id2label", {"0": "A"}),
        ("initializer_range", 0.02),
        ("output_hidden_states", True),
        ("torch_dtype", "bfloat16"),
        ("unsloth_version", "2026.1"),
        ("use_cache", True),
    ],
)
def test_keys_of_training_and_of_the_file_itself_need_no_word(
    llama: Path, key: str, value: Any
) -> None:
    assert warnings(llama, **{key: value}) == ()
