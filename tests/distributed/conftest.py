"""Three workers for all tests of the folder: they take one head after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters import Workers

from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("workers"), 3)
    yield found
    found.end()
