"""What a model's files suggest for sampling, and what is left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import mrs.demo
from mrs.api.requests import ChatCompletionRequest
from mrs.api.runner import Runner
from mrs.api.which import Which
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from mrs.source.suggested_sampling import suggested_sampling, unused_settings

DEMO = Path(mrs.demo.__file__).parent / "model"
WARM = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    for name in names:
        shutil.copy(DEMO / name, tmp_path)
    return tmp_path


def suggested(folder: Path, config: dict[str, Any]) -> dict[str, float]:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return suggested_sampling(open_checkpoint(ModelSource(str(folder), "safetensors")))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"do_sample": True, "eos_token_id": 2, "max_length": 20}, {}),
        ({"do_sample": True, **WARM}, WARM),
        (WARM, WARM),
        ({**WARM, "do_sample": False}, {**WARM, "temperature": 0.0}),
        ({"temperature": None, "top_k": 0, "min_p": 0.1}, {"top_k": 0, "min_p": 0.1}),
    ],
)
def test_generation_config(
    folder: Path, config: dict[str, Any], expected: dict[str, float]
) -> None:
    assert suggested(folder, config) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "0.7"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", [1]),
        ("repetition_penalty", 0),
        ("min_p", 10**400),
    ],
)
def test_a_wrong_value_is_left_out(
    folder: Path, name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {key: kept for key, kept in WARM.items() if key != name}
    assert suggested(folder, {**WARM, name: value}) == expected
    assert f"the model suggests a wrong {name}, which is ignored" in caplog.text


def test_gguf_metadata(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 40)
    writer.add_float32("general.sampling.penalty_repeat", 1.25)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(ModelSource(str(tmp_path), "gguf", ("m.gguf",)))
    expected = {"temperature": 0.5, "top_k": 40, "repetition_penalty": 1.25}
    assert suggested_sampling(checkpoint) == expected


def test_further_settings_of_files(folder: Path, tmp_path: Path) -> None:
    assert suggested(folder, {"typical_p": 0.9, "do_sample": True}) == {"typical_p": 0.9}
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_float32("general.sampling.xtc_probability", 0.5)
    writer.add_float32("general.sampling.xtc_threshold", 0.25)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(ModelSource(str(tmp_path), "gguf", ("x.gguf",)))
    expected = {"xtc_probability": 0.5, "xtc_threshold": 0.25}
    assert suggested_sampling(checkpoint) == expected


def test_greedy_replies_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mrs")
    assert suggested(folder, {"do_sample": False}) == {"temperature": 0.0}
    assert "replies are greedy" in caplog.text


def test_requests_of_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 7, "temperature": 0.5}))
    question: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    open_request = ChatCompletionRequest(messages=question, max_tokens=1)
    with Runner(which=Which.Plain(model_id=str(folder))) as runner:
        asked = []
        stream_chat = runner._model.stream_chat

        def remember(messages: Any, sampling: Any, **settings: Any) -> Any:
            asked.append((sampling.temperature, sampling.top_k, sampling.top_p))
            return stream_chat(messages, sampling, **settings)

        monkeypatch.setattr(runner._model, "stream_chat", remember)
        runner.send_chat_completion_request(open_request)
        given = ChatCompletionRequest(messages=question, max_tokens=1, temperature=0, top_k=3)
        runner.send_chat_completion_request(given)
    assert asked == [(0.5, 7, 1.0), (0.0, 3, 1.0)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bad_words_ids", [[5]]),
        ("begin_suppress_tokens", [5]),
        ("forced_words", ["x"]),
        ("min_new_tokens", 4),
        ("max_new_tokens", 512),
        ("no_repeat_ngram_size", 3),
        ("presence_penalty", 1.5),
        ("sequence_bias", [[[5], 2.0]]),
        ("stop_strings", ["END"]),
        ("suppress_tokens", [5, 6]),
        ("num_beams", 4),
        ("eta_cutoff", 0.1),
        ("brand_new", 2),
    ],
)
def test_a_setting_that_would_shape_replies_and_is_not_read_is_named(key: str, value: Any) -> None:
    assert unused_settings("safetensors", {key: value, "temperature": 0.5}) == [key]


def test_what_transformers_saves_by_default_is_read_without_a_word() -> None:
    transformers = pytest.importorskip("transformers")
    saved = transformers.GenerationConfig(
        eos_token_id=2, temperature=0.5, top_p=0.9, max_length=4096, repetition_penalty=1.1
    )
    assert unused_settings("safetensors", saved.to_dict()) == []
    assert unused_settings("safetensors", {"suppress_tokens": [], "typical_p": 1.0}) == []


def test_settings_of_gguf_files_are_named_too() -> None:
    found = unused_settings(
        "gguf",
        {
            "general.sampling.temp": 0.5,
            "general.sampling.mirostat": 2,
            "general.sampling.penalty_last_n": 64,
            "general.sampling.xtc_probability": 0.0,
            "general.name": "x",
        },
    )
    assert found == ["general.sampling.mirostat", "general.sampling.penalty_last_n"]
