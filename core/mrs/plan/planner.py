"""Plan one model on one set of devices for different requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mrs.architecture.describe import Description
from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.device import Device
from mrs.plan.memory.breakdown import Correction
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.placement.placement import Placement
from mrs.plan.plan import Plan, make_plan
from mrs.request import RunRequest
from mrs.source.checkpoint import Checkpoint


class Planner:
    """Makes plans of one model on one set of devices."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        description: Description,
        devices: Sequence[Device],
        *,
        cpu_packs: bool,
        corrections: Mapping[str, Correction] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.description = description
        self.devices = with_bandwidth(devices)
        self.corrections = corrections or {}
        self.cpu_packs = cpu_packs
        self._files = ModelWeightsInfo(checkpoint, description)

    def plan(self, request: RunRequest, placement: Placement | None = None) -> Plan:
        """The plan for a request, with a given `placement` if there is one."""
        return make_plan(
            request,
            self._files,
            self.devices,
            cpu_packs=self.cpu_packs,
            corrections=self.corrections if request.calibration else {},
            placement=placement,
        )
