"""Tests neither know nor change what programs on this machine keep in its user's folders.

`support/suites.py` says which of them run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support.suites import THINGS, leave_out, mark_full

_LEFT_OUT = pytest.StashKey[dict[str, int]]()


@pytest.fixture(scope="session", autouse=True)
def _folders_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    counts = dict(leave_out(items))
    config.stash[_LEFT_OUT] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = counts
    mark_full(items)


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
        *(f"{n:,} need {name}: {THINGS[name].cure}" for name, n in left_out(config).items()),
        *(f"{n:,} skipped: {why.removeprefix('Skipped: ')}" for why, n in reasons.most_common()),
    ]
    if lines:
        terminalreporter.section("did not run here")
        terminalreporter.write("\n".join((*lines, "")))


def left_out(config: pytest.Config) -> dict[str, int]:
    return config.stash.get(_LEFT_OUT, {})
