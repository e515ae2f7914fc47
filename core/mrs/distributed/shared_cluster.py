"""From a request to the head of processes that share every layer (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.architecture.shares import FLAG
from mrs.distributed.assign import Part, PlannedPart, assignments, meet, require_plain
from mrs.distributed.gathering import Gathering
from mrs.distributed.head import Head
from mrs.distributed.messages import LinkSpeed
from mrs.distributed.tensor_shares import RankPlan, load_share, require_ranks_fit
from mrs.errors import UsageError
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.distributed.shared_head import ConnectedGroup
    from mrs.model.decoder import Decoder


class SharedCluster:
    """The head of the processes that share a model, and the share of this process."""

    def __init__(self, gathering: Gathering[ConnectedGroup], plans: Sequence[RankPlan]) -> None:
        self.gathering = gathering
        self.plans = plans
        self.own_weight_bytes = 0
        #: Sums go through shared memory.
        self.links: Sequence[LinkSpeed] = ()
        self.state_bytes = 0

    @classmethod
    def gather(
        cls, request: RunRequest, plans: Sequence[RankPlan], planner: Planner, plan: Plan
    ) -> SharedCluster:
        """Wait for all workers, and tell each its share: `plans` are of all ranks.

        Raises MrsError.
        """
        assert request.cluster is not None
        require_plain(request)
        if request.layer_map is not None:
            raise UsageError(
                "processes that share every layer have no layers of their own",
                where=FLAG,
                hint="leave out --num-device-layers",
            )
        require_ranks_fit(plans)
        gathering = meet(request.cluster)
        try:
            gathering.gather()
            _require_one_machine(gathering.head)
            layers = range(len(plan.layer_bytes))
            parts = [Part(layers, each.planner.description.parameters) for each in plans[1:]]
            gathering.assign(assignments(request, planner, plan, parts, are_shares=True))
            return cls(gathering, plans)
        except BaseException as error:
            gathering.close(error)
            raise

    @property
    def head(self) -> Head:
        """The head of the workers of now."""
        return self.gathering.head

    def decoder(self) -> Decoder:
        """The model, of which each process computes its share. Raises MrsError."""
        from mrs.distributed.shared_decoder import use_own_threads
        from mrs.distributed.shared_head import SharedHead

        use_own_threads(0, len(self.plans))
        weights = load_share(self.plans[0])
        self.own_weight_bytes = sum(weights.bytes_by_device().values())
        group = self.gathering.connect(Head.connect_group)
        return SharedHead(weights, self.plans, group, self.gathering)

    @property
    def parts(self) -> list[PlannedPart]:
        """What each process needs."""
        return [
            PlannedPart(each.weight_bytes, each.plan.breakdowns[0].total.expected)
            for each in self.plans
        ]

    @property
    def summary(self) -> str:
        """How much of the weights each rank has."""
        ranks = [f"here {human_bytes(self.plans[0].weight_bytes)}"]
        for each in self.head.members:
            ranks.append(f"{each.name} {human_bytes(each.weight_bytes)}")
        return f"a share of each layer in {len(ranks)} processes, {', '.join(ranks)}"

    def close(self) -> None:
        self.gathering.close()


def _require_one_machine(head: Head) -> None:
    for member in head.members:
        if member.host != member.link.channel.own_host:
            raise UsageError(
                f"{member.name} is on another machine",
                where=FLAG,
                hint="machines can only share out whole layers: leave the flag out",
            )
