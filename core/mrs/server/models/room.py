"""How much of the memory a model gets: which others leave for it, and for how many sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mrs.plan.coexistence import fits_beside_others, reserved_bytes
from mrs.plan.largest import largest
from mrs.plan.plan import Plan
from mrs.request import RunRequest

#: Fraction of the memory that one sequence leaves free which further ones may use.
SEQUENCES_SHARE = 0.5


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


def for_many_sequences(request: RunRequest, plan: Callable[[RunRequest], Plan]) -> RunRequest:
    """`request`, planned for as many of its `max_seqs` as there is memory for.

    Sequences that outgrow the planned KV cache wait, so that with one of them few replies would
    run at once. A batch that the user plans for stays, and so does a pool.
    """
    is_settled = request.max_batch_size > 1 or request.plan_file or request.cluster
    if is_settled or request.max_seqs < 2:
        return request
    alone = plan(request)
    if alone.workload.cache.is_pool or not alone.fits:
        return request
    share = SEQUENCES_SHARE / request.max_models

    def with_batch(count: int) -> RunRequest:
        return replace(request, max_batch_size=count)

    def has_room(count: int) -> bool:
        found = plan(with_batch(count))
        pairs = zip(alone.breakdowns, found.breakdowns, strict=True)
        return found.layer_devices == alone.layer_devices and all(
            one.free_bytes - many.free_bytes <= share * max(one.free_bytes, 0)
            for one, many in pairs
        )

    return with_batch(largest(has_room, 2, request.max_seqs) or 1)
