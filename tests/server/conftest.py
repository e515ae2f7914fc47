"""A server of the demo model for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from running_server import RunningServer, running, slow_down

from mrs.engine.worker import Worker
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder

THINKS = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with running() as made:
        yield made
        made.wait_until_idle()


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a model whose replies begin with thoughts."""
    template = tmp_path_factory.mktemp("template") / "thinks.jinja"
    template.write_text(THINKS)
    with running(chat_template=str(template)) as made:
        yield made


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(0.02, monkeypatch.setattr)


@pytest.fixture
def later_steps_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of engines but the first three lack memory, however fast they are."""
    forward, steps = Worker.forward, count()

    def failing(worker: Worker, batch: Any) -> Any:
        if next(steps) >= 3:
            raise MemoryError
        return forward(worker, batch)

    monkeypatch.setattr(Worker, "forward", failing)
