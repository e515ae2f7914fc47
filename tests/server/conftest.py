"""A server of the demo model for the tests of this folder."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
from browser import Browser, browsing, find_chromium
from chat_page import FORGET
from running_server import RunningServer, running, slow_down
from server_process import Process

from mrs.server import pauses, serve
from support.engine_steps import before_each_step
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder

THINKS = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def _collections_leave_out_what_pytest_froze() -> Iterator[None]:
    """A walk through the objects of all tests takes a second, and each server would make many."""
    collector = SimpleNamespace(**(vars(gc) | dict.fromkeys(("freeze", "unfreeze"), int)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses, "gc", collector)
        patch.setattr(serve, "collect", partial(pauses.collect, interval_s=60.0))
        yield


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
    steps = count()

    def fail() -> None:
        if next(steps) >= 3:
            raise MemoryError

    before_each_step(fail, monkeypatch.setattr)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(find_chromium(), tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Browser]:
    """The page of the shared server; at the end, nothing has broken its policy."""
    browser.problems.clear()
    browser.show(900, 640)
    browser.open(f"{server.url}/", "document.title === 'demo'")
    browser.run(FORGET)
    browser.open(f"{server.url}/", "document.title === 'demo'")
    yield browser
    assert browser.problems == []


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(*words: str, slow: bool = False) -> Process:
        made.append(Process(*words, slow=slow))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.end()
