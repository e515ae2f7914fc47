"""The native library, once for each path that this processor can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mrs.kernels.library import PATH_VARIABLE, NativeLibrary, native_library, native_paths


@pytest.fixture(params=native_paths())
def library(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NativeLibrary]:
    monkeypatch.setenv(PATH_VARIABLE, request.param)
    native_library.cache_clear()
    opened = native_library()
    assert opened is not None
    assert opened.path == request.param
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices gain nothing from more
    yield opened
    torch.set_num_threads(threads)
    native_library.cache_clear()
