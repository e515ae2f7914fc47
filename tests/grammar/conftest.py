"""The demo model, loaded once, and one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def model() -> Iterator[LoadedModel]:
    made = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    yield made
    made.close()
