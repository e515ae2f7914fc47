"""Plans that know nothing of what this machine's owner has measured before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mrs.architecture.describe import describe
from mrs.devices.cpu_path import PATH_VARIABLE, cpu_path, cpu_paths
from mrs.devices.parse import what_if_devices
from mrs.kernels.cpu.library import native_library, native_paths
from mrs.plan.planner import Planner
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint
from support.model_files import LLAMA_70B, SMALL_LLAMA, write_headers
from support.threads import single_thread


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MRS_LOGICAL_DEVICES", raising=False)


@pytest.fixture(scope="session")
def llama_70b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_headers(tmp_path_factory.mktemp("models") / "llama-70b", LLAMA_70B, 30)


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_headers(tmp_path_factory.mktemp("models") / "small-llama", SMALL_LLAMA)


@pytest.fixture
def planner_of() -> Callable[..., tuple[Planner, RunRequest]]:
    """A planner of a folder on hypothetical devices, and the request that `changes` describe."""

    def make(
        folder: Path, *devices: str, cpu_packs: bool = True, **changes: Any
    ) -> tuple[Planner, RunRequest]:
        request = RunRequest(ModelSource(str(folder), "safetensors"), **changes)
        checkpoint = open_checkpoint(request.source)
        found = what_if_devices(devices)
        return Planner(checkpoint, describe(checkpoint), found, cpu_packs=cpu_packs), request

    return make


#: The native paths that the environment allows, best first.
NATIVE_PATHS = [
    path for path in cpu_paths()[cpu_paths().index(cpu_path()) :] if path in native_paths()
]


@pytest.fixture(params=[*NATIVE_PATHS[:1], "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernels that run and are planned for: the best native ones, or torch's."""
    yield from _forced(request.param, monkeypatch)


@pytest.fixture(params=NATIVE_PATHS[:1])
def native_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The best native kernels, where there are any."""
    yield from _forced(request.param, monkeypatch)


@pytest.fixture(params=NATIVE_PATHS[1:])
def lower_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The other native paths that this processor can run."""
    yield from _forced(request.param, monkeypatch)


def _forced(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(PATH_VARIABLE, path)
    native_library.cache_clear()
    yield path
    native_library.cache_clear()


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans and measurements for one thread: torch's profiler sees no other."""
    monkeypatch.setattr("mrs.plan.memory.device_sizes.cpu_threads", lambda: 1)
    with single_thread():
        yield
