"""Every way of encoding that this processor has, and one checkpoint for each scheme and family."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.kernels.cpu.library import native_library, native_paths
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder

sys.path.append(str(Path(__file__).parent.parent / "families"))


@pytest.fixture(params=["torch", *native_paths()])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(PATH_VARIABLE, request.param)
    native_library.cache_clear()
    yield request.param
    native_library.cache_clear()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory):
    from checkpoints import Checkpoint, make_checkpoint
    from scheme_cases import BY_ID

    folder = tmp_path_factory.mktemp("schemes")

    @cache
    def made(id: str, family: str = "qwen2") -> Checkpoint:
        return make_checkpoint(BY_ID[id], family, folder / f"{id}-{family}")

    return made
