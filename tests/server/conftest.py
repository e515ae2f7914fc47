"""A server of the demo model for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running_server import RunningServer, running, slow_down

from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with running() as made:
        yield made
        made.wait_until_idle()


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(0.02, monkeypatch.setattr)
