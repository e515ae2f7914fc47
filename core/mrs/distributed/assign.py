"""The head's first steps: it meets the workers, and tells them what to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mrs.architecture.binding import Parameter
from mrs.distributed.arrivals import Arrivals
from mrs.distributed.gathering import Gathering
from mrs.distributed.launcher import launched
from mrs.distributed.local_ranks import LocalRanks
from mrs.distributed.model_part import fingerprint, plan_hash, request_json, weights_sample
from mrs.distributed.protocol.handshake import Listener, parse_address
from mrs.distributed.protocol.messages import Assignment
from mrs.distributed.protocol.secret import find_secret, new_secret
from mrs.errors import UsageError
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import ClusterRequest, RunRequest


def require_plain(request: RunRequest) -> None:
    """Raises UsageError for what several processes cannot do."""
    if request.prefix_cache_dir is not None:
        raise UsageError(
            "the prefix cache of several processes cannot be stored in a folder",
            hint="leave out --prefix-cache-dir",
        )
    if request.draft_model is not None:
        raise UsageError(
            "a draft model cannot be used with several processes yet",
            hint="leave out --draft-model",
        )


def meet(asked: ClusterRequest, cards: int = 0) -> Gathering[Any]:
    """Listens, and starts the workers of this machine if these are asked for.

    `cards` are those that the processes of this machine share out.
    """
    rank = launched()
    if rank is not None and not asked.workers and not asked.listen:
        listener = Listener((rank.host, 0), rank.secret())
        rank.publish(listener.address[1])
        return Gathering(Arrivals(listener), None, rank.world - 1, asked.wait_limit_s)
    address = parse_address(asked.listen or "127.0.0.1:0", "--listen")
    secret = new_secret() if asked.workers else find_secret(address[0])
    listener = Listener(address, secret)
    local: LocalRanks | None = None
    if asked.workers:
        local = LocalRanks(asked.workers, listener.address, secret, cards)
    count = asked.workers or asked.wait_for
    arrivals = Arrivals(listener)
    return Gathering(arrivals, local, count, asked.wait_limit_s, asked.rejoin_limit_s)


class Part(NamedTuple):
    """What a worker loads: layers, whole or a share of each, and their parameters."""

    layers: range
    parameters: Sequence[Parameter]


def assignments(
    request: RunRequest,
    planner: Planner,
    plan: Plan,
    parts: Sequence[Part],
    *,
    group_size: int = 1,
) -> list[Assignment]:
    """One for each worker, whose `parts` follow that of the head."""
    size, spec = plan.workload.cache, planner.description.spec
    found = []
    for rank, part in enumerate(parts, 1):
        assignment = Assignment(
            rank,
            len(parts) + 1,
            request_json(request),
            part.layers.start,
            part.layers.stop,
            plan.dense.name,
            plan.cache_format.name,
            size.tokens,
            size.sequences,
            size.chunk_tokens,
            size.block_tokens,
            size.pool_blocks,
            fingerprint(plan, spec),
            weights_sample(planner.checkpoint, part.parameters),
            group_size,
            plan_hash="",
        )
        digest = plan_hash(assignment)
        found.append(msgspec.structs.replace(assignment, plan_hash=digest))
    return found
