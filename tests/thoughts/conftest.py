"""The demo model, loaded once, and one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.threads import one_thread

sys.path.append(str(Path(__file__).parents[1] / "text"))

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def demo() -> Iterator[LoadedModel]:
    made = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    yield made
    made.close()
