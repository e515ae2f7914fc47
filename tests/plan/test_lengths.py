"""How long a sequence may be: scaled ropes reach beyond the trained length, tables do not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from mrs.errors import MrsError, UsageError
from mrs.plan.plan import Plan
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **values}}


def _saved(folder: Path, family: str, changes: dict[str, Any]) -> Path:
    config = AutoConfig.for_model(family, **{**SIZES, **changes})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _planned(folder: Path, tokens: int | None) -> Plan:
    source = ModelSource(str(folder), "safetensors")
    return ModelLoader(RunRequest(source, cpu=True, max_seq_len=tokens)).plan


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 64),
        (_rope("dynamic"), 256),
        # As the documentation of Qwen 2.5 has users write it: max_position_embeddings stays.
        (_rope("yarn", original_max_position_embeddings=64), 256),
        (_rope("yarn", original_max_position_embeddings=16), 64),
        # Whose configs may give either length: the one that they state is sure.
        (_rope("linear"), 64),
        (_rope("llama3", **_LLAMA3), 64),
        (_rope("longrope", original_max_position_embeddings=32, **_LONG), 64),
    ],
    ids=["none", "dynamic", "yarn", "yarn-extended", "linear", "llama3", "longrope"],
)
def test_a_scaled_rope_reaches_as_far_as_it_scales(
    changes: dict[str, Any], tokens: int, tmp_path: Path
) -> None:
    folder = _saved(tmp_path, "llama", changes)
    plan = _planned(folder, tokens)
    assert plan.model.context_tokens == plan.workload.context_tokens == tokens
    assert not plan.warnings
    more = _planned(folder, tokens + 1)
    assert more.workload.context_tokens == tokens
    assert f"--max-seq-len {tokens + 1} is beyond the model's {tokens} tokens" in more.warnings[0]


def test_a_run_says_that_the_length_is_not_that_of_the_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = _saved(tmp_path, "llama", {})
    request = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True, max_seq_len=100)
    with caplog.at_level(logging.WARNING), pytest.raises(MrsError):  # the folder has no tokenizer
        ModelLoader(request).load()
    assert "--max-seq-len 100 is beyond the model's 64 tokens" in caplog.text


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64}),
        ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 64}),
        ("gpt_bigcode", {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64}),
    ],
)
def test_a_table_of_positions_has_no_more_rows(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = _saved(tmp_path, family, changes)
    assert _planned(folder, 64).workload.context_tokens == 64
    with pytest.raises(UsageError, match="64 positions, not 65") as caught:
        _planned(folder, 65)
    assert "--max-seq-len" in str(caught.value)


def test_the_length_under_dynamic_rope_is_in_the_config(tmp_path: Path) -> None:
    """Files of transformers 4 have it in another place."""
    folder = _saved(tmp_path, "llama", _rope("dynamic"))
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config))
    assert _planned(folder, 128).workload.context_tokens == 128


def test_the_trained_length_of_phi_3_is_outside_of_rope(tmp_path: Path) -> None:
    """If it is there, too, transformers does not look at that."""
    rope = _rope("longrope", original_max_position_embeddings=16, **_LONG)
    changes = {**rope, "original_max_position_embeddings": 32, "pad_token_id": 0}
    folder = _saved(tmp_path, "phi3", changes)
    file = folder / "config.json"
    values = json.loads(file.read_text())
    values["rope_parameters"]["original_max_position_embeddings"] = 16
    file.write_text(json.dumps(values))
    request = RunRequest(ModelSource(str(folder), "safetensors"))
    (layer,) = ModelLoader(request).planner.description.spec.layers
    assert layer.mixer.rope.scaling.trained_tokens == 32
    theirs = AutoConfig.from_pretrained(folder).rope_parameters
    assert theirs["original_max_position_embeddings"] == 32
