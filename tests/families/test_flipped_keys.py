"""Each key of a config that transformers reads has its effect here too, or is refused.

Every number, flag and activation of a tiny model's config is changed in turn. If transformers still
makes a model of the same weights, its logits are the truth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from case import Case
from parity_cases import CASES
from running import TOLERANCE, Conversation, load
from torch import Tensor
from transformers_reference import TransformersReference, new_model

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.errors import MrsError
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from support.suites import suite_of

#: What is no setting of the computation, and sizes whose tensors are given.
_SKIPPED = (
    *("model_type", "dtype", "architectures", "transformers_version", "vocab_size"),
    *("num_hidden_layers", "n_layer", "n_layers", "hidden_size", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
#: Where the logits are not those of transformers, with the reason.
EXCEPTIONS = {
    ("mpt", "attn_config.alibi_bias_max"): "transformers reads it, and takes 8 always",
    ("mpt", "logit_scale"): "transformers reads it, and scales nothing",
}
#: Families of different kinds of layers; all others are slow; and those of the core suite.
_USUAL = (
    *("llama", "gpt2", "opt", "falcon", "gemma2", "granite", "mamba2", "qwen3_next"),
    *("deepseek_v3", "kimi_linear", "phimoe", "gemma", "mpt"),
)
_CORE = ("llama", "mpt", "qwen3_next")
_FIRST = {each.family: each for each in reversed(CASES)}


def _values(key: str, value: object) -> Iterator[object]:
    """Other values of a key."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value // 2 if value > 1 else value + 1
    elif isinstance(value, float):
        yield value * 1.5 if value else 0.5
    elif isinstance(value, str) and key.startswith(("hidden_act", "activation")):
        yield "gelu" if value == "silu" else "silu"
    elif value is None:
        yield from (8, 0.7, True)


def _changes(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, config) with one value changed, also in objects of the config."""
    for key, value in config.items():
        if key in _SKIPPED:
            continue
        if isinstance(value, dict):
            for inner, changed in _changes(value):
                yield f"{key}.{inner}", {**config, key: changed}
        for new in _values(key, value):
            yield key, {**config, key: new}


class Theirs:
    """The logits of transformers for the same weights and another config."""

    def __init__(self, truth: TransformersReference) -> None:
        self._truth = truth
        model_class = type(new_model(truth.case, truth.config))
        self._state = model_class.from_pretrained(truth.folder, dtype=torch.float32).state_dict()

    @torch.no_grad()
    def logits(self, folder: Path) -> Tensor | None:
        """(T, V); None if they make no model of this config, or one of other weights."""
        try:
            config = type(self._truth.config).from_pretrained(folder)
            model = new_model(self._truth.case, config).float().eval()
            loaded = model.load_state_dict(self._state, strict=False)
            if loaded.missing_keys or loaded.unexpected_keys:
                return None
            return model(torch.tensor([self._truth.prompt])).logits[0]
        except Exception:  # noqa: BLE001 - their way to refuse
            return None


def _described(folder: Path) -> Description:
    return describe(open_checkpoint(ModelSource(str(folder), "safetensors")))


def _ours(folder: Path, ids: list[int]) -> Tensor:
    return Conversation(load(ModelSource(str(folder), "safetensors")).decoder).feed(ids)


@pytest.mark.few("llama")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(each, id=each.family, marks=suite_of(each.family, _CORE, _USUAL))
        for each in _FIRST.values()
    ],
)
def test_changed_keys_have_their_effect(
    case: Case, references: Callable[[Case], TransformersReference], tmp_path: Path
) -> None:
    truth = references(case)
    theirs = Theirs(truth)
    (tmp_path / "model.safetensors").symlink_to(truth.folder / "model.safetensors")
    file = tmp_path / "config.json"
    values = json.loads((truth.folder / "config.json").read_text())
    file.write_text(json.dumps(values))
    usual, expected = _described(tmp_path), theirs.logits(tmp_path)
    assert expected is not None, "the reference cannot be made again of its files"
    usual_logits = _ours(tmp_path, truth.prompt)
    tried, wrong = 0, []
    for key, changed in _changes(values):
        file.write_text(json.dumps(changed))
        if (case.family, key) in EXCEPTIONS or (expected := theirs.logits(tmp_path)) is None:
            continue
        tried += 1
        try:
            is_same = _described(tmp_path) == usual
            logits = usual_logits if is_same else _ours(tmp_path, truth.prompt)
        except MrsError:
            continue
        if logits.shape != expected.shape:  # of an encoder, which has no logits
            continue
        off = float((logits - expected).abs().max() / expected.abs().max())
        if not off < TOLERANCE:
            wrong.append(f"{key}: {off:.2g}")
    assert not wrong
    assert tried > 3
