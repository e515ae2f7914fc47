"""One saved model and its reference outputs a case, shared by all checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from vision_cases import CASES, REPRESENTATIVES

from support.references import computed_once
from support.suites import kinds
from support.threads import one_thread

if TYPE_CHECKING:
    from vision_case import VisionCase
    from vision_reference import VisionReference
    from vision_running import LoadedVisionModel

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def vision_references(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[VisionCase], VisionReference]:
    """The reference of a case, computed once."""
    from vision_reference import make_vision_reference

    return computed_once(make_vision_reference, tmp_path_factory)


@pytest.fixture(scope="session", params=kinds(CASES, REPRESENTATIVES))
def truth(request: pytest.FixtureRequest, vision_references) -> VisionReference:
    return vision_references(request.param)


@pytest.fixture(scope="session")
def model(truth: VisionReference) -> LoadedVisionModel:
    from vision_running import load_vision_model

    return load_vision_model(truth.folder)
