"""One checkpoint for each scheme and family, made once."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "families"))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory):
    from checkpoints import Checkpoint, make_checkpoint
    from scheme_cases import BY_ID

    folder = tmp_path_factory.mktemp("schemes")

    @cache
    def made(id: str, family: str = "qwen2") -> Checkpoint:
        return make_checkpoint(BY_ID[id], family, folder / f"{id}-{family}")

    return made
