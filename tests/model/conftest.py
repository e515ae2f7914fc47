"""Every test of the modules runs on one thread and without gradients."""

from collections.abc import Iterator

import pytest
import torch

from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield
