"""One thread for torch: tiny models gain nothing from more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs each test of a folder on one thread, if the folder's conftest imports this fixture."""
    with single_thread():
        yield
