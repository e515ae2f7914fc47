"""A model's identity differs wherever its caches would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mrs.demo
from mrs.load.identity import model_identity
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader

DEMO = Path(mrs.demo.__file__).parent / "model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo model, to be changed."""
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def identity(folder: Path, **changes: object) -> str:
    request = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True)
    loader = ModelLoader(replace(request, **changes))
    return model_identity(loader.planner.checkpoint, loader.plan)


def change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = 12345.0
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config))


def tune(folder: Path) -> None:
    """As a fine-tuned model: the same names, shapes and sizes, and a little else in one tensor."""
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    low_rank = torch.randn(tensors[name].shape[0], 1) @ torch.randn(1, tensors[name].shape[1])
    tensors[name] = (tensors[name].float() + 0.01 * low_rank).to(tensors[name].dtype)
    save_file(tensors, path)


@pytest.mark.parametrize("change", [change_config, tune])
def test_another_model_is_another(model: Path, change: Callable[[Path], None]) -> None:
    before = identity(model)
    assert identity(model) == before
    change(model)
    assert identity(model) != before


def test_the_place_of_a_model_does_not_matter(model: Path) -> None:
    assert identity(model) == identity(DEMO)


@pytest.mark.parametrize("changes", [{"isq": "q8_0"}, {"isq": "q4k"}, {"dtype": "f32"}])
def test_how_weights_and_caches_are_kept_matters(model: Path, changes: dict[str, str]) -> None:
    assert identity(model, **changes) != identity(model)


def test_what_does_not_change_a_number_does_not_matter(model: Path) -> None:
    assert identity(model, max_seq_len=64, seed=3, max_batch_size=2) == identity(model)


def test_another_path_of_the_processor_matters(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity(model)
    monkeypatch.setattr("mrs.load.identity.path_name", lambda: "another")
    assert identity(model) != before
