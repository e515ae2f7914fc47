"""Settings of preprocessor_config.json that nobody looks up are named, if they shape pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from vision_case import make_tokenizer
from vision_cases import CASES
from vision_reference import _as_published, complete_llama4_output

from mrs.architecture.describe import describe
from mrs.architecture.vision.describe_vision import unused_image_settings
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

FIRST = {case.family: case for case in reversed(CASES) if case.reference is None}
LINE = "settings of preprocessor_config.json that are not used: "


def saved(family: str, folder: Path) -> Path:
    complete_llama4_output()
    case = FIRST[family]
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    with torch.no_grad():
        model = transformers.AutoModelForMultimodalLM.from_config(config)
    model.save_pretrained(folder)
    case.processor(make_tokenizer(case.specials)).save_pretrained(folder)
    _as_published(folder)
    return folder


def settings_warnings(folder: Path, **changes: Any) -> list[str]:
    file = folder / "preprocessor_config.json"
    text = file.read_text()
    file.write_text(json.dumps({**json.loads(text), **changes}))
    try:
        checkpoint = open_checkpoint(ModelSource(str(folder), "safetensors"))
        found = describe(checkpoint, with_vision=True).warnings
    finally:
        file.write_text(text)
    return [line for line in found if line.startswith(LINE)]


@pytest.mark.full
@pytest.mark.parametrize("family", sorted(FIRST))
def test_what_transformers_saves_is_read_without_a_word(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path)
    assert settings_warnings(folder) == []
    assert settings_warnings(folder, sharpen=0.5) == [f"{LINE}sharpen"]


@pytest.mark.parametrize("key", ["do_resize", "do_center_crop"])
def test_a_step_that_is_switched_off_and_always_done_is_named(key: str, tmp_path: Path) -> None:
    assert settings_warnings(saved("llava", tmp_path), **{key: False}) == [f"{LINE}{key}"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"do_pad": False, "do_reduce_labels": True}, ["do_pad"]),
        ({"image_mean": [0.5] * 3, "rescale_factor": 0.5}, ["image_mean", "rescale_factor"]),
        ({"image_mean": [0.0] * 3, "rescale_factor": 1 / 255}, []),
        ({"image_processor_type": "X", "size": {"height": 3}, "do_convert_rgb": False}, []),
        ({"gamma": 2.2, "dither": None}, ["gamma"]),
    ],
)
def test_settings_that_change_nothing_need_no_word(
    settings: dict[str, Any], names: list[str]
) -> None:
    expected = (f"{LINE}{', '.join(names)}",) if names else ()
    assert unused_image_settings(settings) == expected
