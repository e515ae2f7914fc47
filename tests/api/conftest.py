"""A maker of small models, and one thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.model_files import write_demo_like_model
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`random_model("llama", num_hidden_layers=4)` is a folder with such a model."""
    return lambda family, **changes: write_demo_like_model(
        tmp_path_factory.mktemp(family), family, **changes
    )
