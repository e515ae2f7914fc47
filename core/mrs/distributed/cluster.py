"""From a request to the coordinator of a cluster with all its layers assigned.

The ranks are stages of `group_size` ranks each: rank r is in stage r // group_size. A stage has
some of the layers, and each of its ranks a shard of them. Stages of one rank are a pipeline, and
one stage of several ranks is tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mrs.architecture.shards import FLAG
from mrs.distributed.coordinator import Coordinator
from mrs.distributed.launch import ranks_of
from mrs.distributed.placement import StageLayout, chosen_group_size
from mrs.distributed.protocol.messages import Assignment, LinkSpeed
from mrs.distributed.rendezvous import Rendezvous, meet
from mrs.distributed.shard import (
    RankPlan,
    fingerprint,
    importance_for,
    load_parameters,
    plan_hash,
    request_json,
    require_splittable,
    shard_parameters,
    states_width,
    weights_sample,
)
from mrs.errors import UsageError
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest, require_whole_stages
from mrs.units import human_bytes
from mrs.weights.binding import Parameter

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.distributed.pipeline import Connections
    from mrs.model.decoder import Decoder


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


class Shard(NamedTuple):
    """What a worker loads: layers, whole or a shard of each, and their parameters."""

    layers: range
    parameters: Sequence[Parameter]


def assignments(
    request: RunRequest,
    planner: Planner,
    plan: Plan,
    shards: Sequence[Shard],
    *,
    group_size: int = 1,
) -> list[Assignment]:
    """The assignment of each worker; the first of the `shards` is the coordinator's."""
    size, spec = plan.workload.cache, planner.description.spec
    assigned = []
    for rank, shard in enumerate(shards, 1):
        assignment = Assignment(
            rank,
            len(shards) + 1,
            request_json(request),
            shard.layers.start,
            shard.layers.stop,
            plan.dense.name,
            plan.cache_format.name,
            size.tokens,
            size.sequences,
            size.chunk_tokens,
            size.block_tokens,
            size.pool_blocks,
            fingerprint(plan, spec),
            weights_sample(planner.checkpoint, shard.parameters),
            group_size,
            plan_hash="",
        )
        digest = plan_hash(assignment)
        assigned.append(msgspec.structs.replace(assignment, plan_hash=digest))
    return assigned


class Cluster:
    """A model in several processes: its layout, its workers, and the shard of this process.

    `importance` reads that of the columns of the whole model.
    """

    def __init__(
        self,
        rendezvous: Rendezvous[Connections],
        layout: StageLayout,
        importance: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        self.rendezvous = rendezvous
        self.layout = layout
        self._importance = importance
        self.own_layers = layout.stages[0]
        self.own_weight_bytes = 0
        self.links: Sequence[LinkSpeed] = ()
        #: The seconds of a sum in each stage.
        self.sums_s: Sequence[float] = ()

    @classmethod
    def gather(
        cls, request: RunRequest, planner: Planner, plan: Plan, plans: Sequence[RankPlan] = ()
    ) -> Cluster:
        """Wait for all workers, and assign layers to them. Raises MrsError.

        `plans` are those of the ranks that share layers, if the request says how many do.
        """
        assert request.cluster is not None
        ranks, size = ranks_of(request), max(1, len(plans))
        require_whole_stages(ranks, size)
        require_plain(request)
        planner.description.spec.require_replies()
        if ranks > size:
            require_splittable(planner.description.spec)
        else:
            _require_one_stage(request)
        cards = sum(device.is_cuda for device in planner.devices)
        rendezvous = meet(request.cluster, cards)
        try:
            rendezvous.gather()
            members = rendezvous.coordinator.members
            if not request.cluster.group_size and request.layer_map is None:
                size = chosen_group_size(request, planner, plan, members)
            _require_one_machine(rendezvous.coordinator, size)
            layout = StageLayout.make(request, planner, plan, members, size)
            shards = [_shard(layout, rank) for rank in range(1, ranks)]
            rendezvous.assign(
                assignments(layout.request, planner, layout.plan, shards, group_size=size)
            )
            importance = partial(importance_for, request, planner.description)
            return cls(rendezvous, layout, importance)
        except BaseException as error:
            rendezvous.close(error)
            raise

    @property
    def plans(self) -> Sequence[RankPlan]:
        """The plans of the ranks of a stage, if that had all layers."""
        return self.layout.plans

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the current workers."""
        return self.rendezvous.coordinator

    def decoder(self) -> Decoder:
        """The model: the own layers, and those of the workers. Raises MrsError."""
        import torch

        from mrs.distributed.pipeline import PipelineDecoder, RemoteLayers, connect
        from mrs.distributed.tensor_parallel import LeadingShardedDecoder, use_own_threads
        from mrs.load.tensor_reader import TORCH_DTYPES
        from mrs.quantization.kv_type import kv_type

        (planner, plan, _), size = self.plans[0], len(self.plans)
        if size > 1:
            use_own_threads(0, size)
        parameters = shard_parameters(planner.description, self.own_layers, is_coordinator=True)
        weights = load_parameters(planner, plan, parameters, self._importance())
        self.own_weight_bytes = sum(weights.bytes_by_device().values())
        connections = self.rendezvous.connect(
            partial(
                connect,
                group_size=size,
                width=self._width,
                device=torch.device(plan.devices[0].torch_device),
            )
        )
        self.links = connections.stages.links if connections.stages else ()
        self.sums_s = connections.sums_s
        if size > 1:
            layers = len(self.own_layers)
            return LeadingShardedDecoder(weights, self.plans, connections, self.rendezvous, layers)
        assert connections.stages is not None
        return PipelineDecoder(
            planner.description.spec,
            weights,
            [torch.device(plan.devices[0].torch_device)] * len(self.own_layers),
            (TORCH_DTYPES[plan.dense.name], kv_type(plan.cache_format.name)),
            RemoteLayers(connections.stages),
            self.rendezvous,
        )

    @property
    def _width(self) -> int:
        return states_width(self.plans[0].planner.description.spec)

    @property
    def state_bytes(self) -> int:
        """The bytes of a token between two processes."""
        return 4 * self._width

    @property
    def summary(self) -> str:
        """Which rank has how many layers, or a shard of them, and where."""
        shared = "" if len(self.plans) == 1 else "a shard of "
        ranks = [f"here {shared}{_counted(self.own_layers)}"]
        if shared:
            ranks[0] += f" ({human_bytes(self.layout.shards[0].weight_bytes)})"
        for member in self.coordinator.members:
            size = human_bytes(member.weight_bytes)
            ranks.append(f"{member.name} {shared}{_counted(member.layers)} ({size})")
        return ", ".join(ranks)

    def close(self) -> None:
        self.rendezvous.close()


def _counted(layers: Sized) -> str:
    return "1 layer" if len(layers) == 1 else f"{len(layers)} layers"


def _shard(layout: StageLayout, rank: int) -> Shard:
    stage, place = divmod(rank, len(layout.plans))
    layers, description = layout.stages[stage], layout.plans[place].planner.description
    return Shard(layers, shard_parameters(description, layers, is_coordinator=not stage))


def _require_one_stage(request: RunRequest) -> None:
    """Raises UsageError if not all ranks can share all layers."""
    if request.layer_map is not None:
        raise UsageError(
            "processes that share every layer have no layers of their own",
            where=FLAG,
            hint="leave out --num-device-layers",
        )


def _require_one_machine(coordinator: Coordinator, group_size: int) -> None:
    """Raises UsageError if ranks that share layers are on different machines."""
    machines = ["", *(member.machine for member in coordinator.members)]
    for member in coordinator.members:
        leader = member.rank - member.rank % group_size
        if member.machine != machines[leader]:
            raise UsageError(
                f"{member.name} shares layers with rank {leader}, which is on another machine",
                where=FLAG,
                hint="start so many processes on each machine, or leave the flag out",
            )
