"""What the native library refuses of a checked step is the coordinator's fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.messages import Assignment, Step
from mrs.distributed.worker import WorkerSteps
from mrs.errors import BadIndex


class _Stage:
    """Whose caches have fewer blocks than its checks believe."""

    def checked(self, step: Step) -> Any:
        return SimpleNamespace(token_ids=None)

    def batch(self, step: Any) -> Any:
        raise BadIndex("block", 17, 16, where="the native attend")


def test_a_block_that_the_cache_does_not_have_is_damage() -> None:
    part: Any = SimpleNamespace(stage=_Stage())
    own: Assignment = SimpleNamespace(is_first=False)  # type: ignore[assignment]
    step: Step = SimpleNamespace(commands=[])  # type: ignore[assignment]
    with pytest.raises(Damaged) as error:
        WorkerSteps(part, own, None, None).compute(step)
    assert str(error.value) == "a step names block 17 of 16 (the native attend)"
