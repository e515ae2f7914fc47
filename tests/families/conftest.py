"""One saved model and its reference outputs a case, shared by all checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from parity_cases import CASES, Case

if TYPE_CHECKING:
    from reference import Reference
    from running import Loaded


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory):
    """Make, at most once each, the reference of a case."""
    from reference import make_reference

    @cache
    def reference(case: Case) -> Reference:
        return make_reference(case, tmp_path_factory.mktemp(case.id))

    return reference


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.id)
def truth(request: pytest.FixtureRequest, references) -> Reference:
    return references(request.param)


@pytest.fixture(scope="session")
def model(truth: Reference) -> Loaded:
    from running import load

    from mrs.request import ModelSource

    return load(ModelSource(str(truth.folder), "safetensors"))
