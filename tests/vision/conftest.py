"""One saved model and its reference outputs a case, shared by all checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from vision_cases import CASES

if TYPE_CHECKING:
    from vision_case import VisionCase
    from vision_reference import VisionReference
    from vision_running import LoadedVisionModel


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def vision_references(tmp_path_factory: pytest.TempPathFactory):
    """Make, at most once each, the reference of a case."""
    from vision_reference import make_vision_reference

    @cache
    def reference(case: VisionCase) -> VisionReference:
        return make_vision_reference(case, tmp_path_factory.mktemp(case.id))

    return reference


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.id)
def truth(request: pytest.FixtureRequest, vision_references) -> VisionReference:
    return vision_references(request.param)


@pytest.fixture(scope="session")
def model(truth: VisionReference) -> LoadedVisionModel:
    from vision_running import load_vision_model

    return load_vision_model(truth.folder)
