"""Which of the loaded models have to be unloaded before another one is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mrs.plan.coexistence import fits_beside_others, reserved_bytes
from mrs.plan.plan import Plan
from mrs.request import RunRequest


def models_to_unload(
    request: RunRequest, loaded: Sequence[Plan], plan: Callable[[RunRequest], Plan]
) -> int:
    """How many of the `loaded` models, the first ones, have to leave before `request` is loaded.

    They have to as long as `predict_fit` says that it does not fit beside those that stay, or it
    would have more layers on the CPU than alone. Raises DoesNotFit if it does not fit alone.
    """
    if not loaded:
        return 0

    def plan_without(count: int) -> Plan:
        reserved = reserved_bytes(staying=loaded[count:], leaving=loaded[:count])
        return plan(replace(request, reserved_bytes=tuple(reserved.items())))

    alone = plan_without(len(loaded))
    alone.require_fit()
    for count in range(len(loaded)):
        found = plan_without(count)
        if found.spilled_layers <= alone.spilled_layers and fits_beside_others(found):
            return count
    return len(loaded)
