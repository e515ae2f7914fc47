"""A maker of small models, and one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from small_models import write_random_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def random_model(tmp_path_factory) -> Callable[..., Path]:
    """`random_model("llama", num_hidden_layers=4)` is a folder with such a model."""
    return lambda family, **changes: write_random_model(
        tmp_path_factory.mktemp(family), family, changes
    )
