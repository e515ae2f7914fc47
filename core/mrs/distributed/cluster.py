"""From a request to the head of a cluster with all its layers assigned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.devices.bandwidth import bandwidth_of
from mrs.distributed.head import Head
from mrs.distributed.launcher import launched
from mrs.distributed.local_ranks import LocalRanks, new_secret
from mrs.distributed.meeting import Listener, parse_address
from mrs.distributed.messages import Assignment
from mrs.distributed.model_part import (
    fingerprint,
    own_parameters,
    plan_hash,
    request_json,
    require_splittable,
    weights_sample,
)
from mrs.distributed.secret import find_secret
from mrs.distributed.split import RankMemory, mapped_layers, split_layers
from mrs.errors import UsageError
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import ClusterRequest, RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.distributed.further_layers import RemoteLayers
    from mrs.model.model_weights import ModelWeights


class Cluster:
    """The head of a model's workers, and the layers that stay with this process."""

    def __init__(self, head: Head, planner: Planner, plan: Plan, ranges: Sequence[range]) -> None:
        self.head = head
        self.own_layers = ranges[0]
        self._planner = planner
        self._plan = plan

    @classmethod
    def gather(cls, request: RunRequest, planner: Planner, plan: Plan) -> Cluster:
        """Wait for all workers, and assign layers to them. Raises MrsError."""
        assert request.cluster is not None
        require_splittable(planner.description.spec)
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
        head, count = _meet(request.cluster)
        try:
            head.gather(count)
            ranges = _ranges(request, plan, head)
            head.assign(_assignments(request, planner, plan, ranges))
            return cls(head, planner, plan, ranges)
        except BaseException:
            head.close()
            raise

    def load_own(self) -> ModelWeights:
        """The weights of the own layers, and of embedding, norm and head."""
        from mrs.distributed.model_part import load_part

        description = self._planner.description
        parameters = own_parameters(description, self.own_layers, is_head=True)
        return load_part(self._planner, self._plan, parameters)

    def connect(self) -> RemoteLayers:
        """The layers of all workers, once these have loaded them. Raises MrsError."""
        hidden, chunk = self._planner.description.spec.hidden_size, self._plan.workload.chunk_tokens
        return self.head.connect(4 * hidden * (chunk + 65536))

    @property
    def summary(self) -> str:
        """Which rank has how many layers, and where."""
        ranks = [f"here {len(self.own_layers)} layers"]
        for each in self.head.members:
            size = human_bytes(each.weight_bytes)
            ranks.append(f"{each.name} {len(each.layers)} layers ({size})")
        return ", ".join(ranks)

    def close(self) -> None:
        self.head.close()


def _meet(asked: ClusterRequest) -> tuple[Head, int]:
    """A head that listens, and the number of its workers."""
    rank = launched()
    if rank is not None and not asked.workers and not asked.listen:
        listener = Listener((rank.host, 0), rank.new_secret())
        rank.publish(listener.address)
        return Head(listener, None, asked.wait_limit_s), rank.world - 1
    address = parse_address(asked.listen or "127.0.0.1:0", "--listen")
    secret = new_secret() if asked.workers else find_secret(address[0])
    listener = Listener(address, secret)
    local = LocalRanks(asked.workers, listener.address, secret) if asked.workers else None
    return Head(listener, local, asked.wait_limit_s), asked.workers or asked.wait_for


def _ranges(request: RunRequest, plan: Plan, head: Head) -> list[range]:
    layer_bytes = [w + kv for w, kv in zip(plan.layer_bytes, plan.kv_bytes, strict=True)]
    if request.layer_map is not None:
        return mapped_layers(request.layer_map, len(layer_bytes), len(head.members) + 1)
    own, terms = plan.devices[0], plan.breakdowns[0]
    fixed_bytes = terms.weight_bytes + terms.kv_bytes - sum(layer_bytes)
    ranks = [RankMemory("this process", own.available_bytes, bandwidth_of(own), fixed_bytes)]
    shared = 1 + sum(each.host.startswith("127.") for each in head.members)
    for each in head.members:
        device, is_here = each.join.device, each.host.startswith("127.")
        free_bytes = device.free_bytes // (shared if is_here else 1)
        ranks.append(RankMemory(each.name, free_bytes, device.bytes_per_s))
    return split_layers(layer_bytes, ranks)


def _assignments(
    request: RunRequest, planner: Planner, plan: Plan, ranges: Sequence[range]
) -> list[Assignment]:
    """One for each worker; `ranges` has the layers of the head, too."""
    size, spec = plan.workload.cache, planner.description.spec
    found = []
    for rank, layers in enumerate(ranges[1:], 1):
        parameters = own_parameters(planner.description, layers, is_head=False)
        facts = {
            "request": request_json(request).decode(),
            "first": layers.start,
            "end": layers.stop,
            "dense": plan.dense.name,
            "cache_format": plan.cache_format.name,
            "tokens": size.tokens,
            "sequences": size.sequences,
            "chunk_tokens": size.chunk_tokens,
            "block_tokens": size.block_tokens,
            "pool_blocks": size.pool_blocks,
            "fingerprint": fingerprint(plan, spec),
            "sample": weights_sample(planner.checkpoint, parameters),
        }
        values = {**facts, "request": request_json(request)}
        world = len(ranges)
        found.append(Assignment(rank, world, plan_hash=plan_hash(facts), **values))  # type: ignore[arg-type]
    return found
