"""Reference outputs that are computed once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from support.threads import single_thread


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Case = TypeVar("Case", bound=HasId)
Reference = TypeVar("Reference")


def computed_once(
    make: Callable[[Case, Path], Reference], folders: pytest.TempPathFactory
) -> Callable[[Case], Reference]:
    """`make` with a new folder for each case, on one thread, and cached."""

    @cache
    def reference(case: Case) -> Reference:
        with single_thread():
            return make(case, folders.mktemp(case.id))

    return reference
