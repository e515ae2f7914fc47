"""Plan one model on one set of devices for different requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache

from mrs.architecture.description import Description
from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.device import Device
from mrs.plan.memory.breakdown import Correction
from mrs.plan.memory.device_sizes import ModelSizes
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.placement.placement import Placement
from mrs.plan.plan import Plan, make_plan
from mrs.request import ModelSource, RunRequest
from mrs.source.checkpoint import Checkpoint

#: Sizes for so many loads and formats are kept, for plans on other devices.
MOST_SIZES = 256


class Planner:
    """Makes plans of one model on one set of devices, with the model of `draft` if there is one."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        description: Description,
        devices: Sequence[Device],
        *,
        cpu_packs: bool,
        corrections: Mapping[str, Correction] | None = None,
        draft: Planner | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.description = description
        self.devices = with_bandwidth(devices)
        self.corrections = corrections or {}
        self.draft = draft
        self.cpu_packs = cpu_packs
        self._files = ModelWeightsInfo(checkpoint, description)
        self._sizes = lru_cache(MOST_SIZES)(ModelSizes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the model's files, one line each."""
        return self._files.warnings

    def plan(self, request: RunRequest, placement: Placement | None = None) -> Plan:
        """The plan for a request, with a given `placement` if there is one."""
        return make_plan(
            request,
            self._files,
            self.devices,
            cpu_packs=self.cpu_packs,
            corrections=self.corrections if request.calibration else {},
            placement=placement,
            draft=self.draft.plan_as_draft(request) if self.draft else None,
            sizes_of=self._sizes,
        )

    def on(self, devices: Sequence[Device]) -> Planner:
        """A planner of this model on other devices, which shares what was made of the files."""
        other = copy(self)
        other.devices, other.corrections = with_bandwidth(devices), {}
        return other

    def plan_as_draft(self, request: RunRequest) -> Plan:
        """The plan of this model as the draft model of a request: whole on the first device."""
        draft = draft_request(request, self.checkpoint.source)
        return self.plan(draft, Placement([(0, len(self.description.spec.layers))]))


def draft_request(request: RunRequest, source: ModelSource) -> RunRequest:
    """The request of a draft model, for the same load as that of the large model."""
    return RunRequest(
        source,
        dtype=request.dtype,
        cpu=request.cpu,
        devices=request.devices,
        calibration=request.calibration,
        max_seq_len=request.max_seq_len,
        max_batch_size=request.max_batch_size,
        prefix_cache_n=0,
        paged=replace(request.paged, pool=False),
    )
