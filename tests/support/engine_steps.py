"""What tests do before each step of an engine, be it one for itself or one of a burst."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mrs.engine.worker import Worker
from mrs.model.decoder import Decoder
from mrs.model.native_layers import NativeSteps


def before_each_step(
    act: Callable[[], object],
    set_attribute: Callable[[type, str, object], None] = setattr,
) -> None:
    """Let `act` be called in the engine's thread before each step; it may raise."""
    computers: tuple[tuple[type, str], ...] = (
        (Worker, "forward"),
        (Decoder, "steps"),  # the first step of a burst
        (NativeSteps, "next"),
    )
    for computer, method in computers:
        set_attribute(computer, method, _after(act, getattr(computer, method)))


def _after(act: Callable[[], object], compute: Callable[..., Any]) -> Callable[..., Any]:
    def acted(*arguments: Any, **more: Any) -> Any:
        act()
        return compute(*arguments, **more)

    return acted
