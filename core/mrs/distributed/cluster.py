"""From a request to the head of a cluster with all its layers assigned.

The ranks are stages of `group_size` ranks each: rank r is in stage r // group_size. A stage has
some of the layers, and each of its ranks a share of them. Stages of one rank are a pipeline, and
one stage of several ranks is tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mrs.architecture.shares import FLAG
from mrs.distributed.assign import Part, assignments, meet, require_plain
from mrs.distributed.chosen_groups import chosen_group_size
from mrs.distributed.gathering import Gathering
from mrs.distributed.head import Head
from mrs.distributed.layout import Layout
from mrs.distributed.messages import LinkSpeed
from mrs.distributed.model_part import (
    importance_for,
    load_part,
    own_parameters,
    require_splittable,
    states_width,
)
from mrs.distributed.tensor_shares import RankPlan, ranks_of
from mrs.errors import UsageError
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest, require_whole_stages
from mrs.units import human_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.distributed.further_layers import Connections
    from mrs.model.decoder import Decoder


class Cluster:
    """The head of a model's workers, and the part of the model that stays with this process.

    `importance` reads that of the columns of the whole model.
    """

    def __init__(
        self,
        gathering: Gathering[Connections],
        layout: Layout,
        importance: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        self.gathering = gathering
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
        if ranks > size:
            require_splittable(planner.description.spec)
        else:
            _require_one_stage(request)
        cards = sum(each.is_cuda for each in planner.devices)
        gathering = meet(request.cluster, cards)
        try:
            gathering.gather()
            members = gathering.head.members
            if not request.cluster.group_size and request.layer_map is None:
                size = chosen_group_size(request, planner, plan, members)
            _require_one_machine(gathering.head, size)
            layout = Layout.make(request, planner, plan, members, size)
            parts = [_part(layout, rank) for rank in range(1, ranks)]
            gathering.assign(
                assignments(layout.request, planner, layout.plan, parts, group_size=size)
            )
            importance = partial(importance_for, request, planner.description)
            return cls(gathering, layout, importance)
        except BaseException as error:
            gathering.close(error)
            raise

    @property
    def plans(self) -> Sequence[RankPlan]:
        """The plans of the ranks of a stage, if that had all layers."""
        return self.layout.plans

    @property
    def head(self) -> Head:
        """The head of the workers of now."""
        return self.gathering.head

    def decoder(self) -> Decoder:
        """The model: the own layers, and those of the workers. Raises MrsError."""
        import torch

        from mrs.distributed.connecting import connect
        from mrs.distributed.further_layers import RemoteLayers
        from mrs.distributed.head_decoder import HeadDecoder
        from mrs.distributed.shared_decoder import use_own_threads
        from mrs.distributed.shared_head import SharedHead
        from mrs.load.tensor_reader import TORCH_DTYPES
        from mrs.quantization.gguf.unquantized import DTYPES

        (planner, plan, _), size = self.plans[0], len(self.plans)
        if size > 1:
            use_own_threads(0, size)
        parameters = own_parameters(planner.description, self.own_layers, is_head=True)
        weights = load_part(planner, plan, parameters, self._importance())
        self.own_weight_bytes = sum(weights.bytes_by_device().values())
        connected = self.gathering.connect(
            partial(
                connect,
                group_size=size,
                width=self._width,
                device=torch.device(plan.devices[0].torch_device),
            )
        )
        self.links = connected.stages.links if connected.stages else ()
        self.sums_s = connected.sums_s
        if size > 1:
            layers = len(self.own_layers)
            return SharedHead(weights, self.plans, connected, self.gathering, layers)
        assert connected.stages is not None
        return HeadDecoder(
            planner.description.spec,
            weights,
            [torch.device(plan.devices[0].torch_device)] * len(self.own_layers),
            (TORCH_DTYPES[plan.dense.name], DTYPES[plan.cache_format.name]),
            RemoteLayers(connected.stages),
            self.gathering,
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
        """Which rank has how many layers, or a share of them, and where."""
        shared = "" if len(self.plans) == 1 else "a share of "
        ranks = [f"here {shared}{len(self.own_layers)} layers"]
        if shared:
            ranks[0] += f" ({human_bytes(self.layout.parts[0].weight_bytes)})"
        for each in self.head.members:
            size = human_bytes(each.weight_bytes)
            ranks.append(f"{each.name} {shared}{len(each.layers)} layers ({size})")
        return ", ".join(ranks)

    def close(self) -> None:
        self.gathering.close()


def _part(layout: Layout, rank: int) -> Part:
    stage, place = divmod(rank, len(layout.plans))
    layers, description = layout.stages[stage], layout.plans[place].planner.description
    return Part(layers, own_parameters(description, layers, is_head=not stage))


def _require_one_stage(request: RunRequest) -> None:
    """Raises UsageError if not all ranks can share all layers."""
    if request.layer_map is not None:
        raise UsageError(
            "processes that share every layer have no layers of their own",
            where=FLAG,
            hint="leave out --num-device-layers",
        )


def _require_one_machine(head: Head, group_size: int) -> None:
    """Raises UsageError if ranks that share layers are on different machines."""
    machines = ["", *(each.machine for each in head.members)]
    for member in head.members:
        leader = member.rank - member.rank % group_size
        if member.machine != machines[leader]:
            raise UsageError(
                f"{member.name} shares layers with rank {leader}, which is on another machine",
                where=FLAG,
                hint="start so many processes on each machine, or leave the flag out",
            )
