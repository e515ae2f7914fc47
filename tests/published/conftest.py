"""The published model of these tests, loaded once; without the package they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conversations import request_for

from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.published_model import (
    WHY_ABSENT,
    ExactModel,
    exact_model,
    published_gguf,
    transformers_model,
)
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the tests of this folder only."""
    item.add_marker(pytest.mark.published)


@pytest.fixture(scope="session")
def published() -> Path:
    path = published_gguf()
    if path is None:
        pytest.skip(WHY_ABSENT)
    return path


@pytest.fixture(scope="session")
def exact(published: Path) -> ExactModel:
    return exact_model(published)


@pytest.fixture(scope="session")
def reference(exact: ExactModel) -> Any:
    """transformers' model with the same weights in float32."""
    return transformers_model(exact)


@pytest.fixture(scope="session")
def loaded(published: Path) -> Iterator[LoadedModel]:
    # Without drafts, so that the tokens that are computed can be counted.
    model = ModelLoader(request_for(published, speculate="off")).load()
    yield model
    model.close()
