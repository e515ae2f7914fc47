"""The file of `mrs multi-model`, in the form of mistral.rs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mrs.errors import UsageError
from mrs.request import RunRequest
from mrs_cli.parsing.flags.global_flags import GlobalFlags
from mrs_cli.parsing.flags.planning_flags import PlanningFlags
from mrs_cli.parsing.flags.server_flags import duration_s
from mrs_cli.parsing.models_file import read_models


def read(folder: Path, content: Any, default: str | None = None) -> dict[str, RunRequest]:
    path = folder / "models.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_models(str(path), GlobalFlags(isq="q8_0"), PlanningFlags(dtype="f32"), default)


def test_each_model_has_its_own_settings_and_the_flags(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "one": {"Plain": {"model_id": "meta-llama/Llama-3.2-1B", "arch": None}},
            "two": {
                "Gguf": {
                    "tok_model_id": "demo",
                    "quantized_model_id": "folder",
                    "quantized_filename": "a.gguf",
                },
                "alias": "quantized",
                "num_device_layers": ["0:2", "1:3"],
                "chat_template": "chat.jinja",
            },
            "three": {
                "VisionPlain": {"model_id": "org/sees", "dtype": "BF16", "max_edge": 400},
                "alias": None,
                "in_situ_quant": "Q4K",
            },
        },
    )
    one, two, three = found.values()
    assert list(found) == ["meta-llama/Llama-3.2-1B", "quantized", "org/sees"]
    assert (one.isq, one.dtype, one.source.container) == ("q8_0", "f32", "safetensors")
    assert two.source.filenames == ("a.gguf",)
    assert two.source.tokenizer_model_id == "demo"
    assert (two.layer_map, two.chat_template) == ("0:2;1:3", "chat.jinja")
    assert (three.isq, three.dtype) == ("q4k", "bf16")
    assert three.vision is not None
    assert three.vision.max_edge == 400


def test_a_model_for_embeddings(tmp_path: Path) -> None:
    (found,) = read(tmp_path, {"a": {"Embedding": {"model_id": "org/embeds"}}}).values()
    assert (found.source.model_id, found.source.container) == ("org/embeds", "safetensors")


@pytest.mark.parametrize("default", ["b", "org/b"])
def test_the_default_model_comes_first(tmp_path: Path, default: str) -> None:
    content = {
        "a": {"Plain": {"model_id": "org/a"}},
        "b": {"Plain": {"model_id": "org/b"}, "alias": "b"},
    }
    assert list(read(tmp_path, content, default)) == ["b", "org/a"]
    with pytest.raises(UsageError, match="c is not in"):
        read(tmp_path, content, "c")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "cannot be read"),
        ([], "is not a JSON object"),
        ({}, "has no model"),
        ({"a": 1}, "a in .* is not a JSON object"),
        ({"a": {"Speech": {"model_id": "b"}}}, "no one selector that mrs knows: Speech"),
        ({"a": {"alias": "b"}}, "no one selector that mrs knows: none"),
        ({"a": {"Plain": {}}}, "has no model_id"),
        ({"a": {"Plain": {"model_id": 3}}}, "model_id of Plain of a .* is not a text"),
        (
            {"a": {"Plain": {"model_id": "b", "matformer_slice_name": "c"}}},
            "has the unknown field matformer_slice_name",
        ),
        ({"a": {"Plain": {"model_id": "b", "dtype": "f8"}}}, "dtype of Plain of a .* is unknown"),
        ({"a": {"VisionPlain": {"model_id": "b", "max_edge": 0}}}, "is not a whole number above 0"),
        ({n: {"Plain": {"model_id": "b"}} for n in "xy"}, "two models in .* are named b"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, content)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="--config /none cannot be read: No such file"):
        read_models("/none", GlobalFlags(), PlanningFlags(), None)


def test_durations() -> None:
    given = {"300": 300, "30s": 30, "1.5m": 90, "2h": 7200, "0": 0, "-1": None, None: None}
    assert {text: duration_s(text, "--keep-alive") for text in given} == given
    for wrong in ("", "m", "5d", "nan", "inf", "1 minute"):
        with pytest.raises(UsageError, match=r"--keep-alive .*is no duration"):
            duration_s(wrong, "--keep-alive")
