"""One saved model and its reference outputs a case, shared by all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from case import PlainCase
from parity_cases import CASES, REPRESENTATIVES, Case

from support.references import computed_once
from support.suites import kinds
from support.threads import one_thread

if TYPE_CHECKING:
    from adapter_bases import Base
    from every_path import Workers
    from reference import Reference
    from running import Loaded

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Reference]:
    """The reference of a case, computed once."""

    def make_reference(case: Case, folder: Path) -> Reference:
        if isinstance(case, PlainCase):
            from plain_reference import make_plain_reference

            return make_plain_reference(case, folder)
        from transformers_reference import make_reference

        return make_reference(case, folder)

    return computed_once(make_reference, tmp_path_factory)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Base]:
    """The model of a case that adapters change, and its weights; made once."""
    from adapter_bases import make_base

    return computed_once(make_base, tmp_path_factory)


@pytest.fixture(scope="session", params=kinds(CASES, REPRESENTATIVES))
def truth(request: pytest.FixtureRequest, references) -> Reference:
    return references(request.param)


@pytest.fixture(scope="session")
def model(truth: Reference) -> Loaded:
    from running import load

    from mrs.request import ModelSource

    return load(ModelSource(str(truth.folder), "safetensors"))


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker for all models that two processes share."""
    from every_path import Workers

    found = Workers(tmp_path_factory.mktemp("workers"), 1)
    yield found
    found.end()
