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
#: Files that take as long as hundreds of other tests: at the end, one worker would wait for them.
_LONGEST = frozenset(
    (
        "test_server_hostile.py",
        "test_made_up.py",
        "test_prefix_folder_writing.py",
        "test_server_memory.py",
        "test_shared_families.py",
        "test_activations.py",
        "test_activations_of_parts.py",
        "test_server_models.py",
        "test_draft_model.py",
        "test_vision_prefixes.py",
        "test_engine_prefixes.py",
        "test_exact.py",
        "test_server_agents.py",
        "test_server_connections.py",
        "test_vision_on_fake_gpu.py",
        "test_process_memory.py",
        "test_families.py",
        "test_cli_plan.py",
        "test_server_adapters.py",
        "test_shared_exact.py",
    )
)
_LEFT_OUT = pytest.StashKey[dict[str, int]]()


@pytest.fixture(scope="session", autouse=True)
def _folders_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _lookups_draft() -> Iterator[None]:
    """Prompt lookup drafts however long steps take: those of tiny models are soon too dear."""
    from mrs.engine.drafter import LookupDrafter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LookupDrafter, "_most_tokens", lambda self, sequence, wanted: wanted)
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
        # Here and not later: what comes next takes a second for twenty thousand tests.
        num_full = _deselect(config, items, "full")
        lines |= {"are of the full suite: python -m pytest -m full": num_full} if num_full else {}
    if "full" in config.option.markexpr and "slow" not in config.option.markexpr:
        # A case of a full test can be slow: it runs only where slow ones are asked for.
        _deselect(config, items, "slow")
    config.stash[_LEFT_OUT] = lines
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = lines
        num_tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.name not in _LONGEST, -num_tests[item.path]))


def _deselect(config: pytest.Config, items: list[pytest.Item], mark: str) -> int:
    """Take the items with a mark out, and count them."""
    marked = [item for item in items if item.get_closest_marker(mark) is not None]
    config.hook.pytest_deselected(items=marked)
    items[:] = [item for item in items if item.get_closest_marker(mark) is None]
    return len(marked)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return _TOGETHER.get(file, file)

    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False  # the workers have put their tests in order
    return Scheduling(config, log)


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
