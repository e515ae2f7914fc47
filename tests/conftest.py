"""Tests neither know nor change what programs on this machine keep in its user's folders.

`support/suites.py` says which of them run.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.suites import THINGS, leave_out, mark_full

# What workers and the programs of tests import is compiled once, not by each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Torch's threads sleep while they have nothing to do: two workers on two processors would spend
# most of their time on waiting for each other's.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Nothing of a test depends on how busy the machine is.
settings.register_profile("mrs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mrs")

#: Files whose tests run in the worker of another file, as both need what is slow to compute.
_TOGETHER = {"tests/families/test_parity_gguf.py": "tests/families/test_parity.py"}
_LEFT_OUT = pytest.StashKey[dict[str, int]]()


@pytest.fixture(scope="session", autouse=True)
def _folders_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The collector of garbage walks neither while all tests are made nor through them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = {f"need {name}: {THINGS[name].cure}": n for name, n in leave_out(items).items()}
    mark_full(items)
    if "not full" in config.option.markexpr:
        num_full = sum(item.get_closest_marker("full") is not None for item in items)
        lines |= {"are of the full suite: python -m pytest -m full": num_full} if num_full else {}
    config.stash[_LEFT_OUT] = lines
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = lines


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return _TOGETHER.get(file, file)

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist has collected, not this process."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A line for each reason why tests did not run, not one for each test."""
    reasons = Counter(each.longrepr[2] for each in terminalreporter.stats.get("skipped", ()))
    lines = [
        *(f"{n:,} {why}" for why, n in config.stash.get(_LEFT_OUT, {}).items()),
        *(f"{n:,} skipped: {why.removeprefix('Skipped: ')}" for why, n in reasons.most_common()),
    ]
    if lines:
        terminalreporter.section("did not run here")
        terminalreporter.write("\n".join((*lines, "")))
