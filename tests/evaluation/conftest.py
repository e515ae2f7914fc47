"""Two small models with the demo's tokenizer, and a text that nobody else has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.model_files import write_demo_like_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_like_model(tmp_path_factory.mktemp("models") / "one", "llama")


@pytest.fixture(scope="session")
def near(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The same model with other values in all of its tensors."""
    folder = write_demo_like_model(tmp_path_factory.mktemp("models") / "near", "llama")
    path = folder / "model.safetensors"
    chance = torch.Generator().manual_seed(1)
    changed = {
        name: weight * (1 + 0.02 * torch.randn(weight.shape, generator=chance))
        for name, weight in load_file(model / "model.safetensors").items()
    }
    save_file(changed, path, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text"
    path.write_text("".join(f"The {n} birds of {n * n % 97} see {n**3 % 89}. " for n in range(90)))
    return path
