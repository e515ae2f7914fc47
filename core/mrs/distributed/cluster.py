"""From a request to the head of a cluster with all its layers assigned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.architecture.model_spec import ModelSpec
from mrs.devices.bandwidth import bandwidth_of
from mrs.distributed.assign import Part, PlannedPart, assignments, meet, require_plain
from mrs.distributed.gathering import Gathering
from mrs.distributed.head import Head
from mrs.distributed.messages import LinkSpeed
from mrs.distributed.model_part import (
    own_parameters,
    require_splittable,
    states_width,
    unbroken_layers,
)
from mrs.distributed.split import RankMemory, mapped_layers, split_layers
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.distributed.further_layers import Neighbours, RemoteLayers
    from mrs.model.decoder import Decoder
    from mrs.model.model_weights import ModelWeights


class Cluster:
    """The head of a model's workers, and the layers that stay with this process."""

    def __init__(
        self,
        gathering: Gathering[Neighbours],
        planner: Planner,
        plan: Plan,
        ranges: Sequence[range],
    ) -> None:
        self.gathering = gathering
        self.own_layers = ranges[0]
        self.own_weight_bytes = 0
        self.links: Sequence[LinkSpeed] = ()
        self._ranges = ranges
        self._planner = planner
        self._plan = plan

    @classmethod
    def gather(cls, request: RunRequest, planner: Planner, plan: Plan) -> Cluster:
        """Wait for all workers, and assign layers to them. Raises MrsError."""
        assert request.cluster is not None
        require_splittable(planner.description.spec)
        require_plain(request)
        gathering = meet(request.cluster)
        try:
            gathering.gather()
            ranges = _ranges(request, plan, planner.description.spec, gathering.head)
            parts = [
                Part(layers, own_parameters(planner.description, layers, is_head=False))
                for layers in ranges[1:]
            ]
            gathering.assign(assignments(request, planner, plan, parts))
            return cls(gathering, planner, plan, ranges)
        except BaseException as error:
            gathering.close(error)
            raise

    @property
    def head(self) -> Head:
        """The head of the workers of now."""
        return self.gathering.head

    def load_own(self) -> ModelWeights:
        """The weights of the own layers, and of embedding, norm and head."""
        from mrs.distributed.model_part import load_part

        description = self._planner.description
        parameters = own_parameters(description, self.own_layers, is_head=True)
        return load_part(self._planner, self._plan, parameters)

    def connect(self) -> RemoteLayers:
        """The layers of all workers, once these have loaded them. Raises MrsError."""
        from mrs.distributed.further_layers import RemoteLayers

        width, chunk = (
            states_width(self._planner.description.spec),
            self._plan.workload.chunk_tokens,
        )
        most_bytes = 4 * width * (chunk + 65536)
        neighbours = self.gathering.connect(lambda head: head.connect(most_bytes))
        return RemoteLayers(neighbours, self.gathering.reason)

    def decoder(self) -> Decoder:
        """The model: own layers, and those of the workers. Raises MrsError."""
        import torch

        from mrs.distributed.head_decoder import HeadDecoder
        from mrs.load.tensor_reader import TORCH_DTYPES

        plan, weights = self._plan, self.load_own()
        self.own_weight_bytes = sum(weights.bytes_by_device().values())
        workers = self.connect()
        self.links = workers.links
        return HeadDecoder(
            self._planner.description.spec,
            weights,
            [torch.device(plan.devices[0].torch_device)] * len(self.own_layers),
            (TORCH_DTYPES[plan.dense.name], TORCH_DTYPES[plan.cache_format.name]),
            workers,
            self.gathering,
        )

    @property
    def state_bytes(self) -> int:
        """The bytes of a token between two processes."""
        return 4 * states_width(self._planner.description.spec)

    @property
    def parts(self) -> list[PlannedPart]:
        """What each process needs; weights that belong to no layer are with the head."""
        plan, terms = self._plan, self._plan.breakdowns[0]
        found = []
        for rank, layers in enumerate(self._ranges):
            weight_bytes = sum(plan.layer_bytes[n] for n in layers)
            if rank == 0:
                weight_bytes += terms.weight_bytes - sum(plan.layer_bytes)
            kv_bytes = sum(plan.kv_bytes[n] for n in layers)
            others = terms.weight_bytes - weight_bytes + sum(plan.kv_bytes) - kv_bytes
            found.append(PlannedPart(weight_bytes, terms.total.expected - others))
        return found

    @property
    def summary(self) -> str:
        """Which rank has how many layers, and where."""
        ranks = [f"here {len(self.own_layers)} layers"]
        for each in self.head.members:
            size = human_bytes(each.weight_bytes)
            ranks.append(f"{each.name} {len(each.layers)} layers ({size})")
        return ", ".join(ranks)

    def close(self) -> None:
        self.gathering.close()


def _ranges(request: RunRequest, plan: Plan, spec: ModelSpec, head: Head) -> list[range]:
    unbroken = unbroken_layers(spec)
    layer_bytes = [w + kv for w, kv in zip(plan.layer_bytes, plan.kv_bytes, strict=True)]
    if request.layer_map is not None:
        return mapped_layers(request.layer_map, len(layer_bytes), len(head.members) + 1, unbroken)
    own, terms = plan.devices[0], plan.breakdowns[0]
    fixed_bytes = terms.weight_bytes + terms.kv_bytes - sum(layer_bytes)
    ranks = [RankMemory("this process", own.available_bytes, bandwidth_of(own), fixed_bytes)]
    shared = 1 + sum(each.host.startswith("127.") for each in head.members)
    for each in head.members:
        device, is_here = each.join.device, each.host.startswith("127.")
        free_bytes = device.free_bytes // (shared if is_here else 1)
        ranks.append(RankMemory(each.name, free_bytes, device.bytes_per_s))
    return split_layers(layer_bytes, ranks, unbroken)
