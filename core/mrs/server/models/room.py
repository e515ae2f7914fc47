"""How much of the memory a model gets: which others leave for it, and for how many sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mrs.plan.coexistence import fits_beside_others, reserved_bytes
from mrs.plan.most_sequences import most_sequences
from mrs.plan.plan import Plan
from mrs.request import RunRequest

#: Fraction of the memory that one sequence leaves free which further ones may use.
SEQUENCES_SHARE = 0.5


def require_room(
    request: RunRequest, loaded: Sequence[Plan], plan: Callable[[RunRequest], Plan]
) -> None:
    """Raise DoesNotFit if `request` does not fit without any of the `loaded` models.

    Raises what planning raises.
    """
    reserved = reserved_bytes(staying=(), leaving=loaded)
    plan(replace(request, reserved_bytes=tuple(reserved.items()))).require_fit()


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
        remaining = plan_without(count)
        if remaining.spilled_layers <= alone.spilled_layers and fits_beside_others(remaining):
            return count
    return len(loaded)


def for_many_sequences(request: RunRequest, plan: Callable[[RunRequest], Plan]) -> RunRequest:
    """`request`, planned for as many of its `max_seqs` as there is memory for.

    Sequences that outgrow the planned KV cache wait, so that with one of them few replies would
    run at once. A batch that the user plans for stays, and so does a pool. The coordinator of a
    cluster does the same when it knows the memory of its workers.
    """
    if request.max_batch_size > 1 or request.plan_file:
        return request
    share = SEQUENCES_SHARE / request.max_models
    if request.cluster is not None:
        return replace(request, cluster=replace(request.cluster, sequences_share=share))
    alone = plan(request)
    if alone.workload.cache.is_pool or not alone.fits:
        return request

    def with_batch(count: int) -> RunRequest:
        return replace(request, max_batch_size=count)

    def free_bytes(count: int) -> list[int] | None:
        batched = plan(with_batch(count)) if count > 1 else alone
        is_same = batched.layer_devices == alone.layer_devices
        return [each.free_bytes for each in batched.breakdowns] if is_same else None

    return with_batch(most_sequences(free_bytes, request.max_seqs, share))
