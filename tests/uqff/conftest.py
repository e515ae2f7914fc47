"""Models in UQFF, made once for each kind of layers."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "families"), str(TESTS / "quantization")]


@pytest.fixture(scope="session")
def uqff_models(tmp_path_factory: pytest.TempPathFactory):
    from layer_kinds import KINDS
    from uqff_models import Made, make_model

    folder = tmp_path_factory.mktemp("uqff")

    @cache
    def made(kind: str, family: str = "qwen2") -> Made:
        return make_model(KINDS[kind], family, folder / f"{kind}-{family}")

    return made
